"""Existing TFRecord files of tf.train.Example, to be written anew.

Example:
    >>> import tempfile, pathlib
    >>> from tfdist.data import example, records
    >>> payload = example.joined([example.entry("x", Feature("int64"), example.content_of(Feature("int64"), 7))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.tfrecord")
    ...     _ = path.write_bytes(records.frame(payload))
    ...     source = open_tfrecords([str(path)])
    ...     print(source.count, [block["x"].tolist() for block in source.blocks(0, None)])
    1 [[7]]
"""

import contextlib
import gzip
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data import example, records
from tfdist.data import manifest as manifests
from tfdist.data.manifest import Manifest
from tfdist.data.schema import TEXT, Feature, Schema
from tfdist.data.sources import files
from tfdist.data.sources.blocks import BLOCK_BYTES, BLOCK_EXAMPLES, cut, length
from tfdist.data.sources.chain import chained
from tfdist.data.sources.columns import column
from tfdist.data.sources.protocol import Block, Source
from tfdist.errors import ConfigError, CorruptDataError

_SAMPLE = 256  # records from which a schema is inferred
_READ_BYTES = 1 << 20  # a record is read in such pieces, so that a corrupt length allocates nothing


def open_tfrecords(paths: Sequence[str], schema: Schema | None = None) -> Source:
    """Return TFRecord files as one source.

    Without a schema, files that `tfdist.data.write` made have that of their manifest; of others the first 256 records
    of the first file tell it: a feature with one value in all of them is a
    single value, one with as many in each an array, else a list of any length.

    Args:
        paths: local paths, or URLs for fsspec; files whose name ends with ``.gz`` are decompressed.
        schema: what the records must be.

    Raises:
        ConfigError: a file has no records, or records have not the same features.
        CorruptDataError: a file is no TFRecord file, or its records are no tf.train.Example.
    """
    filled = [path for path in paths if files.entry(path).size]  # other tools leave empty shards
    if not filled:
        raise ConfigError(f"{paths[0]} has no records; at least one is needed.")
    found = schema or _of_manifest(filled[0]) or _inferred(filled[0])
    return chained([_open(path, found) for path in filled])


def _open(path: str, schema: Schema) -> "Records | Stream":
    return Stream(path, schema) if files.is_url(path) or path.endswith(".gz") else Records(path, schema)


class Records:
    """The records of a local file, found by their lengths; pickled by its path and where they are."""

    seekable = True

    def __init__(self, path: str, schema: Schema) -> None:
        self.schema, self._path = schema, path
        with _mapped(path) as data:
            found = records.scan(data)
        if found.problem:
            raise CorruptDataError(
                f"{path} has {found.problem} at byte {found.offsets[-1]}, after {len(found.offsets) - 1} records. If "
                "it is compressed with GZIP, let its name end with .gz; if it was cut off or damaged, make it anew."
            )
        self._offsets = found.offsets
        self.count: int | None = len(found.offsets) - 1
        self.sizes: NDArray[np.int64] | None = np.diff(found.offsets)
        self.identity: dict[str, Any] = files.identity("tfrecords", [path])
        self.identifies = files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the records from ``start`` to ``stop``, their checksums checked."""
        end = min(self.count or 0, self.count or 0 if stop is None else stop)
        if start >= end:
            return
        with _mapped(self._path) as data:
            at = start
            while at < end:
                limit = self._offsets[at] + BLOCK_BYTES
                last = int(np.searchsorted(self._offsets[: end + 1], limit, side="right")) - 1
                last = max(at + 1, min(last, at + BLOCK_EXAMPLES))
                yield _block(self.schema, [self._payload(data, i) for i in range(at, last)], at, self._path)
                at = last

    def _payload(self, data: Any, index: int) -> bytes:
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        if end > len(data) or not records.payload_fits(data, begin, end - begin - records.OVERHEAD_BYTES):
            raise _corrupt(self._path, index, begin)
        return bytes(data[begin + records.HEADER_BYTES : end - 4])


class Stream:
    """The records of a file that can be read from its beginning alone: compressed or remote."""

    seekable = False
    sizes: NDArray[np.int64] | None = None
    count: int | None = None

    def __init__(self, path: str, schema: Schema) -> None:
        self.schema, self._path = schema, path
        self.identity: dict[str, Any] = files.identity("tfrecords", [path])
        self.identifies = files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the records from ``start`` to ``stop``; those before are read and dropped."""
        return cut(self._read(), start, stop)

    def _read(self) -> Iterator[Block]:
        at, held, held_bytes = 0, [], 0
        for payload in _payloads(self._path):
            held.append(payload)
            held_bytes += len(payload)
            if held_bytes >= BLOCK_BYTES or len(held) >= BLOCK_EXAMPLES:
                block = _block(self.schema, held, at, self._path)
                at, held, held_bytes = at + length(block), [], 0
                yield block
        if held:
            yield _block(self.schema, held, at, self._path)


def _payloads(path: str) -> Iterator[bytes]:
    """The payloads of a file, from its beginning, their checksums checked."""
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(files.opened(path))
        if path.endswith(".gz"):
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        index, position = 0, 0
        try:
            while header := file.read(records.HEADER_BYTES):
                size = struct.unpack_from("<Q", header.ljust(8, b"\0"))[0]
                if header != records.header(size):
                    raise _corrupt(path, index, position)
                body = b"".join(_pieces(file, size + 4))
                if len(body) != size + 4 or records.masked_crc(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                    raise _corrupt(path, index, position)
                yield body[:-4]
                index, position = index + 1, position + size + records.OVERHEAD_BYTES
        except (gzip.BadGzipFile, EOFError, struct.error) as error:
            raise CorruptDataError(f"{path} cannot be decompressed after record {index - 1}: {error}") from error


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(size, _READ_BYTES))):
        size -= len(piece)
        yield piece


def _corrupt(path: str, index: int, position: int) -> CorruptDataError:
    return CorruptDataError(
        f"record {index} of {path}, at byte {position}, does not have its checksum: the file is no TFRecord file, or "
        "was damaged or cut off. Make it anew, or leave it out."
    )


def _block(schema: Schema, payloads: Sequence[bytes], start: int, path: str) -> Block:
    rows = []
    # integers as they were stored: `column` looks whether the dtype holds them
    stored = {n: replace(f, dtype="int64") if f.encoding == "int64" else f for n, f in schema.items()}
    for index, payload in enumerate(payloads, start):
        try:
            parsed = example.parse(payload)
            rows.append({name: example.value(name, feature, parsed) for name, feature in stored.items()})
            extra = parsed.keys() - schema.keys()
        except CorruptDataError as error:
            raise ConfigError(
                f"Example {index} of {path}: {error} Pass a schema that fits all records: a list of any length has the "
                "shape (None,)."
            ) from error
        if extra:
            raise ConfigError(
                f"Example {index} of {path} has the feature {min(extra)!r} besides {', '.join(map(repr, schema))}. "
                "Every example must have the same features; pass a schema that has them all."
            )
    return {
        name: column(name, feature, [row[name] for row in rows], start, f" of {path}")
        for name, feature in schema.items()
    }


def _of_manifest(path: str) -> Schema | None:
    """The schema in the manifest beside a file, if it is this format's and names the file."""
    folder, _, name = path.rpartition("/")
    try:
        with files.opened(f"{folder or '.'}/{manifests.NAME}") as file:
            found = Manifest.from_bytes(file.read(manifests.LARGEST_BYTES))
    except (OSError, CorruptDataError):
        return None
    return found.schema if any(shard.file == name for shard in found.shards) else None


def _inferred(path: str) -> Schema:
    kinds: dict[str, set[str]] = {}
    sizes: dict[str, set[int]] = {}
    count = 0
    for index, payload in enumerate(islice(_payloads(path), _SAMPLE)):
        try:
            parsed = example.parse(payload)
        except CorruptDataError as error:
            raise CorruptDataError(f"record {index} of {path}: {error}") from error
        for name, (kind, values) in parsed.items():
            kinds.setdefault(name, set()).update([kind] if kind else [])
            sizes.setdefault(name, set()).add(len(values))
        count += 1
    if not count:
        raise ConfigError(f"{path} has no records; at least one is needed.")
    if not kinds:
        raise ConfigError(f"the records of {path} have no features; they must be tf.train.Example.")
    return Schema({name: _feature(name, kinds[name], sizes[name], path) for name in kinds})


def _feature(name: str, kinds: set[str], sizes: set[int], path: str) -> Feature:
    if len(kinds) != 1:
        raise ConfigError(
            f"feature {name!r} has {' and '.join(sorted(kinds)) or 'no values'} in the first records of {path}; pass a "
            "schema that says what it is."
        )
    dtype = {"bytes": TEXT, "float": "float32", "int64": "int64"}[kinds.pop()]
    size = sizes.pop() if len(sizes) == 1 else None
    return Feature(dtype, () if size == 1 else (size,))


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[Any]:
    with files.opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
