"""Tar files of WebDataset: members with one key are an example, and the rest of their names are its features."""

import io
import json
import logging
import re
import tarfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign, Places, cut_texts, narrow
from tfdist.data.foreign.kept_index import Arrays, kept
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError

KEY = "__key__"
_BLOCK = 512  # members begin at multiples of so many bytes
_NAME = re.compile(r"((?:.*/|)[^./]+)\.([^/]*)", re.DOTALL)  # the first dot of the base name ends the key
_META = re.compile(r"__[^/]*__(/|$)")  # names that WebDataset keeps for itself
_INTEGERS = frozenset({"cls", "cls2", "id", "index", "inx"})
_PICTURES = frozenset({"jpg", "jpeg", "png", "gif", "bmp", "webp"})
_NAMED = 3  # members that are named of those that are left out
_logger = logging.getLogger(__name__)
_Ids = NDArray[np.int64]


class TarShards(Foreign):
    """Tar files, found by one pass over the headers of their members."""

    def __init__(self, files: Files) -> None:
        found = kept(files, lambda: _found(files))
        counts = found["counts"].tolist()
        self._names: list[str] = json.loads(found["names"].tobytes())
        self._keys, self._key_places = found["keys"], Places([sum(counts)], found["key_offsets"])
        self._blocks, self._sizes = found["blocks"], found["sizes"]
        ends = np.cumsum(counts)[:-1]
        parts = zip(counts, np.split(self._blocks, ends), np.split(self._sizes, ends), strict=True)
        shards = [files.shard(number, *part) for number, part in enumerate(parts)]
        super().__init__(files, shards, "cls")

    def _schema(self) -> Schema:
        return Schema({KEY: Feature(TEXT), **{name: self._feature(name) for name in self._names}})

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        found: Columns = {}
        for name in names:
            if name == KEY:
                found[name] = cut_texts(self._keys, self._key_places, ids)
                continue
            values = self._values(ids, name)
            kind = name.rpartition(".")[2]
            if kind in _INTEGERS:
                found[name] = np.array([self._integer(*row, name) for row in zip(ids, values, strict=True)], np.int64)
            elif kind == "npy":
                rows = zip(ids.tolist(), values, strict=True)
                found[name] = self.stacked(name, [self.fitting(row, name, _array(value)) for row, value in rows])
            else:
                found[name] = values
        return found

    def _values(self, ids: _Ids, name: str) -> list[bytes]:
        place = self._names.index(name)
        begins, sizes = self._blocks[ids, place].astype(np.int64) * _BLOCK, self._sizes[ids, place].astype(np.int64)
        return self.bytes_at(ids, begins, sizes)

    def _integer(self, number: int, value: bytes, name: str) -> int:
        try:
            return int(np.int64(int(value)))
        except (ValueError, OverflowError):
            raise self.bad(int(number), f"its {name} is {value[:20]!r}, which must be an int64.") from None

    def _feature(self, name: str) -> Feature:
        kind = name.rpartition(".")[2]
        if kind in _INTEGERS:
            return Feature("int64")
        if kind != "npy":
            return Feature(TEXT, is_image=kind in _PICTURES)
        arrays = [_array(value) for value in self._values(np.arange(min(len(self._sizes), 32)), name)]
        first = next((array for array in arrays if array is not None), None)
        if first is None:
            raise CorruptDataError(
                f"{self.files.storage.url}: {name} is not an array of NumPy.", path=self.files.names[0]
            )
        same = all(array is None or array.shape == first.shape for array in arrays)
        return Feature(first.dtype.name, first.shape if same or first.ndim != 1 else (None,), encoding="raw")


def _found(files: Files) -> Arrays:
    keys: list[bytes] = []
    counts, tables = [], []
    first: tuple[list[str], str] | None = None
    for number in range(len(files.paths)):
        names, found = _members(files, number, first)
        counts.append(len(found))
        if not found:
            continue
        first = first or (names, files.names[number])
        keys += [key.encode(errors="surrogateescape") for key in found]
        tables.append(np.array(list(found.values()), np.int64).reshape(len(found), -1, 2))
    wide = first[0] if first else []
    spans = np.concatenate([np.zeros((0, len(wide), 2), np.int64), *tables])
    return {
        "counts": np.array(counts, np.int64),
        "names": np.frombuffer(json.dumps(wide).encode(), np.uint8),
        "keys": np.frombuffer(b"".join(keys), np.uint8),
        "key_offsets": narrow(np.cumsum([0, *map(len, keys)], dtype=np.int64)),
        "blocks": narrow(spans[:, :, 0] // _BLOCK),
        "sizes": narrow(spans[:, :, 1]),
    }


def _members(
    files: Files, number: int, first: tuple[list[str], str] | None
) -> tuple[list[str], dict[str, list[tuple[int, int]]]]:
    """The features, and for each key the first byte and size of each."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    last, end = None, 0
    nameless: list[str] = []
    try:
        with tarfile.open(files.paths[number], "r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                name = _NAME.fullmatch(member.name.removeprefix("./"))
                if not member.isfile() or _META.match(member.name.removeprefix("./")):
                    continue  # as WebDataset does
                if name is None:
                    nameless.append(member.name)
                    continue
                key, field = name[1], name[2].lower()
                if key in found and (key != last or field in found[key]):
                    raise ConfigError(
                        f"{files.paths[number]} has {member.name!r}, and {key!r} was there before: members of an "
                        "example must follow each other, each with a name of its own.",
                        path=str(files.paths[number]),
                    )
                if member.issparse():
                    raise files.damaged(number, f"has the sparse member {member.name!r}, which is not read.")
                found.setdefault(key, {})[field] = (member.offset_data, member.size)
                last = key
    except tarfile.TarError as error:
        raise files.damaged(number, f"is no whole tar file that is not compressed: {error}") from error
    _need_end(files, number, end)
    if nameless:
        _logger.warning(
            "%s: %d members belong to no example, because their names are not KEY.EXTENSION: %s",
            *(files.paths[number], len(nameless), ", ".join(nameless[:_NAMED]) + ", ..." * (len(nameless) > _NAMED)),
        )
    names, where = first or (list(next(iter(found.values()), {})), files.names[number])
    for key, fields in found.items():
        if fields.keys() != set(names):
            raise ConfigError(
                f"{key!r} of {files.paths[number]} has {', '.join(sorted(fields))}; the first example, of {where}, has "
                f"{', '.join(sorted(names))}. All must have the same. WebDataset ends a key at the first dot of the "
                "file name, so a/b.c.jpg and a/b.d.jpg are one example: rename such files.",
                name=key,
                path=str(files.paths[number]),
            )
        last_byte = max(begin + size for begin, size in fields.values())
        if last_byte > len(files.maps[number]):
            raise files.damaged(number, f"ends before {key!r} does.")
    return names, {key: [fields[name] for name in names] for key, fields in found.items()}


def _need_end(files: Files, number: int, end: int) -> None:
    """Refuse a file that other readers take for a shorter one: without the two blocks of zeros, or with more behind."""
    rest = files.maps[number][end:]
    if len(rest) < 2 * _BLOCK and not rest.any():
        raise files.damaged(number, "has no end behind its last member: it was cut, or is being written.")
    if rest.any():
        raise files.damaged(
            number,
            f"continues after its end, byte {end}: joined tars are read only up to there. Join them with `tar -A`.",
        )


def _array(value: bytes) -> NDArray[Any] | None:
    try:
        found = np.load(io.BytesIO(value), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    return found if isinstance(found, np.ndarray) else None
