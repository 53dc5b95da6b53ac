"""LMDB environments: keys in sorted order with their values, found by one pass over the pages of the tree.

A file has pages of one size. The first two say where the root of the newest tree is. Leaf pages have keys with small
values, and the numbers of the pages where large values are, each in one piece. LMDB itself is not needed.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign, Places, cut_texts, narrow
from tfdist.data.foreign.kept_index import Arrays, kept
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError

#: the file of an environment that is a folder
NAME = "data.mdb"
MAGIC = 0xBEEFC0DE
_HEADER = 16  # bytes before the content of a page
_META = struct.Struct("<IIQQ")  # magic, version, address, size of the map
_TREE = struct.Struct("<IHHQQQQQ")  # page size (of the first tree), flags, depth, 3 numbers of pages, entries, root
_NODE = struct.Struct("<HHHH")  # low and high part of a size or page, flags, size of the key
_BRANCH, _LEAF = 0x01, 0x02  # flags of pages
_IN_PAGES, _DATABASE, _SEVERAL = 0x01, 0x02, 0x04  # flags of nodes
_MOST_DEPTH = 32
_Ids = NDArray[np.int64]


class LmdbFiles(Foreign):
    """The entries of LMDB files as examples with `key` and `value`, both bytes, in the order of their keys."""

    def __init__(self, files: Files) -> None:
        found = kept(files, lambda: _found(files))
        self._begins, self._sizes = found["begins"], found["sizes"]
        self._keys, self._key_places = found["keys"], Places([len(self._sizes)], found["key_offsets"])
        shards = [files.shard(0, len(self._sizes), self._begins, self._sizes)]
        super().__init__(files, shards)

    def _schema(self) -> Schema:
        return Schema({"key": Feature(TEXT), "value": Feature(TEXT)})

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        found: Columns = {}
        for name in names:
            if name == "key":
                found[name] = cut_texts(self._keys, self._key_places, ids)
            else:
                begins, sizes = self._begins[ids].astype(np.int64), self._sizes[ids].astype(np.int64)
                found[name] = self.bytes_at(ids, begins, sizes)
        return found


def open_lmdb(path: Path) -> LmdbFiles | None:
    """Return the environment of a folder or of a file; None if it is something else."""
    file = path / NAME if path.is_dir() else path
    if not file.is_file():
        return None
    with open(file, "rb") as opened:
        head = opened.read(_HEADER + 4)
    return LmdbFiles(Files([file], "lmdb")) if head[_HEADER:] == MAGIC.to_bytes(4, "little") else None


def _found(files: Files) -> Arrays:
    try:
        entries = list(_Tree(files).entries())
    except (struct.error, IndexError) as error:
        raise files.damaged(0, f"is no whole LMDB file: {error}.") from error
    return {
        "keys": np.frombuffer(b"".join(key for key, _, _ in entries), np.uint8),
        "key_offsets": narrow(np.cumsum([0, *(len(key) for key, _, _ in entries)], dtype=np.int64)),
        "begins": narrow(np.array([begin for _, begin, _ in entries], np.int64)),
        "sizes": narrow(np.array([size for _, _, size in entries], np.int64)),
    }


class _Tree:
    """The newest tree of an LMDB file."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._content = files.maps[0].data
        self._page_bytes = _TREE.unpack_from(self._content, _HEADER + _META.size)[0]
        if self._page_bytes not in [1 << power for power in range(9, 17)]:
            raise self._damaged(f"says that its pages have {self._page_bytes} bytes")
        self._root, self._count, last = max(map(self._meta, (0, 1)), key=lambda meta: meta[-1])[:3]
        if (last + 1) * self._page_bytes > len(self._content):
            raise self._damaged(
                f"has {len(self._content)} bytes, and its tree {(last + 1) * self._page_bytes}: it was cut"
            )

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the key, the first byte of the value and the size of the value of each entry."""
        count = 0
        for count, entry in enumerate(self._below(self._root, _MOST_DEPTH) if self._count else (), 1):  # noqa: B007
            yield entry
        if count != self._count:
            raise self._damaged(f"has {count} entries, and says that it has {self._count}")

    def _meta(self, page: int) -> tuple[int, int, int, int]:
        """Return the root, the number of entries, the last page, and the number of the transaction of a meta page."""
        at = page * self._page_bytes + _HEADER
        magic, version, _, _ = _META.unpack_from(self._content, at)
        if magic != MAGIC or version != 1:
            raise self._damaged(f"has the version {version}; 1 is read, which LMDB 0.9 writes")
        entries, root = _TREE.unpack_from(self._content, at + _META.size + _TREE.size)[-2:]
        last, transaction = struct.unpack_from("<QQ", self._content, at + _META.size + 2 * _TREE.size)
        return root, entries, last, transaction

    def _below(self, page: int, depth: int) -> Iterator[tuple[bytes, int, int]]:
        at = page * self._page_bytes
        flags, lower = struct.unpack_from("<HH", self._content, at + 10)
        count = (lower - _HEADER) // 2
        if not depth or not flags & (_BRANCH | _LEAF) or not 0 <= count < self._page_bytes // 2:
            raise self._damaged(f"has no page of a tree at byte {at}")
        for offset in struct.unpack_from(f"<{count}H", self._content, at + _HEADER):
            low, high, node, key_size = _NODE.unpack_from(self._content, at + offset)
            key = at + offset + _NODE.size
            if flags & _BRANCH:
                yield from self._below(low | high << 16 | node << 32, depth - 1)
                continue
            if node & (_DATABASE | _SEVERAL):
                self._refuse("named databases" if node & _DATABASE else "several values for a key (dupsort)")
            begin, size = key + key_size, low | high << 16
            if node & _IN_PAGES:
                begin = struct.unpack_from("<Q", self._content, begin)[0] * self._page_bytes + _HEADER
            if begin + size > len(self._content):
                raise self._damaged(f"has a value that ends at byte {begin + size}, behind its end")
            yield bytes(self._content[key : key + key_size]), begin, size

    def _damaged(self, why: str) -> CorruptDataError:
        return self._files.damaged(0, f"{why}.")

    def _refuse(self, what: str) -> None:
        path = self._files.paths[0]
        raise ConfigError(
            f"{path} has {what}, which are not read. Write its entries into a directory: tfdist.data.write takes a "
            "generator of examples.",
            path=str(path),
        )
