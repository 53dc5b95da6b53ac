"""Existing TFRecord files of tf.train.Example or tf.train.SequenceExample as sources, to be written anew.

Classes are matched by their names, so that each name has one number in files of several origins.
"""

import contextlib
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import example, record_framing
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.format.record_framing import LARGEST_PAYLOAD
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources import compressed_files, source_files
from tfdist.data.sources.compressed_files import GZIP, HEAD_BYTES, VOID, ZLIB, kind_of
from tfdist.data.sources.protocol import BLOCK_BYTES, BLOCK_EXAMPLES, Block, Source, chained, cut, length
from tfdist.data.sources.stored_columns import column, numbers_of, widened
from tfdist.data.sources.tfrecords import inference
from tfdist.data.sources.tfrecords.inference import Seen, as_kept
from tfdist.errors import ConfigError, CorruptDataError, fields_of

_SAMPLE = 256  # records from which a schema is inferred
_SAMPLED_FILES = 8
_READ_BYTES = 1 << 20  # a record is read in such pieces, so that a corrupt length allocates nothing


def named(schema: Schema, origins: Sequence[Schema]) -> Schema:
    """Return a schema whose features take the class names of an origin if they have none."""
    found = dict(schema)
    for name, feature in schema.items():
        known = [origin[name].names for origin in origins if name in origin and origin[name].names]
        if known and not feature.names:
            found[name] = replace(feature, names=known[0])
    return Schema(found)


def matched(source: Source, own: Schema | None, where: str) -> Source:
    """Return a source whose classes have the numbers of its schema."""
    tables = {
        name: numbers_of(own[name].names, feature.names, name, where)
        for name, feature in source.schema.items()
        if own is not None and name in own and own[name].names and own[name].names != feature.names
    }
    for name, table in tables.items():
        dtype = source.schema[name].dtype
        if np.iinfo(dtype if dtype != "bool" else "uint8").max < table.max() or (dtype == "bool" and table.max() > 1):
            raise ConfigError(
                f"{name!r} is {dtype}, which has no room for {table.max() + 1} classes; pass a wider one."
            )
    return Renumbered(source, tables, where) if tables else source


class Renumbered:
    """The examples of a source with other class numbers for some features."""

    def __init__(self, source: Source, tables: Mapping[str, NDArray[np.int64]], where: str) -> None:
        self._source, self._tables, self._where = source, dict(tables), where
        self.schema, self.count, self.sizes = source.schema, source.count, source.sizes
        self.seekable, self.identifies = source.seekable, source.identifies
        self.identity: dict[str, Any] = {
            **source.identity,
            "classes": {name: table.tolist() for name, table in self._tables.items()},
        }

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        at = start
        for block in self._source.blocks(start, stop):
            changed = {name: self._changed(name, block[name], at) for name in self._tables}
            yield {**block, **changed}
            at += length(block)

    def _changed(self, name: str, values: Any, at: int) -> Any:
        table = self._tables[name]
        if isinstance(values, list):
            return [self._changed(name, value, at + row)[()] for row, value in enumerate(values)]
        array = np.asarray(values)
        wrong = (array < 0) | (array >= len(table))
        if wrong.any():
            row = int(np.flatnonzero(wrong.reshape(len(array), -1).any(axis=1))[0]) if array.ndim else 0
            raise ConfigError(
                f"Example {at + row} of {self._where}: {name!r} is {array[wrong].flat[0]}, which is the number of none "
                f"of its {len(table)} classes."
            )
        return table[array].astype(array.dtype)


def open_tfrecords(paths: Sequence[str], schema: Schema | None) -> Source:
    """Open TFRecord files as one source.

    Files of `tfdist.data.write` have the schema of their manifest. For others, it is inferred from 256 records of up to
    eight files.
    """
    # other tools leave empty shards; whether a remote compressed file is one shows when it is read
    filled = [
        path
        for path in paths
        if source_files.entry(path).size > 0 and (source_files.is_url(path) or kept_as(path) != VOID)
    ]
    if not filled:
        raise ConfigError(f"{paths[0]} has no records; at least one is needed.", path=paths[0])
    known = _schemas(filled)
    described = [own for own in known.values() if own is not None]
    found = schema or (widened(described) if known[filled[0]] else surveyed(filled, most=_SAMPLE))
    found = named(found, described)
    return chained([matched(_open(path, found, known[path]), known[path], path) for path in filled])


def _open(path: str, schema: Schema, own: Schema | None) -> "Records | Stream":
    is_plain = not source_files.is_url(path) and kept_as(path) not in (GZIP, ZLIB)
    return Records(path, schema, own) if is_plain else Stream(path, schema, own)


def kept_as(path: str) -> str:
    """Detect the compression of a file from its first bytes; see `compressed_files.kind_of`."""
    return kind_of(source_files.head(path, HEAD_BYTES))


class Records:
    """The records of a local file, found by their lengths; pickled as the path and the offsets."""

    seekable = True

    def __init__(self, path: str, schema: Schema, own: Schema | None) -> None:
        self.schema, self._own, self._path = schema, own or schema, path
        with _mapped(path) as data:
            found = record_framing.scan(data)
        if found.problem:
            raise CorruptDataError(
                f"{path} has {found.problem} at byte {found.offsets[-1]}, after {len(found.offsets) - 1} records. It "
                "is not a TFRecord file, or was cut off or damaged; make it again, or leave it out.",
                path=path,
            )
        self._offsets = found.offsets
        self.count: int | None = len(found.offsets) - 1
        self.sizes: NDArray[np.int64] | None = np.diff(found.offsets)
        self.identity: dict[str, Any] = source_files.identity("tfrecords", [path])
        self.identifies = source_files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        end = min(self.count or 0, self.count or 0 if stop is None else stop)
        if start >= end:
            return
        with _mapped(self._path) as data:
            at = start
            while at < end:
                limit = self._offsets[at] + BLOCK_BYTES
                last = int(np.searchsorted(self._offsets[: end + 1], limit, side="right")) - 1
                last = max(at + 1, min(last, at + BLOCK_EXAMPLES))
                payloads = [self._payload(data, index) for index in range(at, last)]
                yield _block(self.schema, self._own, payloads, at, self._path)
                at = last

    def _payload(self, data: Any, index: int) -> bytes:
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        if end > len(data) or not record_framing.payload_fits(data, begin, end - begin - record_framing.OVERHEAD_BYTES):
            raise _corrupt(self._path, index, begin)
        return bytes(data[begin + record_framing.HEADER_BYTES : end - 4])


class Stream:
    """The records of a compressed or remote file, which is read from its beginning; see `Records`."""

    seekable = False
    sizes: NDArray[np.int64] | None = None
    count: int | None = None

    def __init__(self, path: str, schema: Schema, own: Schema | None) -> None:
        self.schema, self._own, self._path = schema, own or schema, path
        self.identity: dict[str, Any] = source_files.identity("tfrecords", [path])
        self.identifies = source_files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield blocks; records before ``start`` are read and dropped."""
        return cut(self._read(), start, stop)

    def _read(self) -> Iterator[Block]:
        at, held, held_bytes = 0, [], 0
        for payload in _payloads(self._path):
            held.append(payload)
            held_bytes += len(payload)
            if held_bytes >= BLOCK_BYTES or len(held) >= BLOCK_EXAMPLES:
                block = _block(self.schema, self._own, held, at, self._path)
                at, held, held_bytes = at + length(block), [], 0
                yield block
        if held:
            yield _block(self.schema, self._own, held, at, self._path)


def _payloads(path: str) -> Iterator[bytes]:
    """Yield the payloads of a file from its beginning, after verifying their checksums."""
    kind = kept_as(path)
    if kind == VOID:
        return
    with source_files.opened(path) as stored, compressed_files.unpacked(path, stored, kind) as file:
        index, position = 0, 0
        while header := file.read(record_framing.HEADER_BYTES):
            size = struct.unpack_from("<Q", header.ljust(8, b"\0"))[0]
            if header != record_framing.header(size):
                raise _corrupt(path, index, position)
            if size > LARGEST_PAYLOAD:
                raise CorruptDataError(
                    f"record {index} of {path}, at byte {position}, has {size} bytes; a tf.train.Example has at most "
                    f"{LARGEST_PAYLOAD}. Leave the file out.",
                    received=size,
                    path=path,
                )
            what, cure = f"record {index} of {path}", "Make the file anew with smaller examples."
            compressed_files.require_room(what, 2 * size, cure)  # its pieces, and all of them together
            try:
                body = b"".join(_pieces(file, size + 4))
            except MemoryError as error:
                raise compressed_files.no_room(what, cure) from error
            if len(body) != size + 4 or record_framing.masked_crc(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                raise _corrupt(path, index, position)
            yield body[:-4]
            index, position = index + 1, position + size + record_framing.OVERHEAD_BYTES


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(size, _READ_BYTES))):
        size -= len(piece)
        yield piece


def _corrupt(path: str, index: int, position: int) -> CorruptDataError:
    return CorruptDataError(
        f"record {index} of {path}, at byte {position}, does not have its checksum: the file is not a "
        "TFRecord file, or "
        "was damaged or cut off. Make it anew, or leave it out.",
        path=path,
    )


def _block(schema: Schema, own: Schema, payloads: Sequence[bytes], start: int, path: str) -> Block:
    rows = []
    for index, payload in enumerate(payloads, start):
        try:
            parsed = inference.parsed(payload, schema)
            rows.append({name: _value(name, own.get(name, feature), parsed) for name, feature in schema.items()})
            extra = [name for name in parsed.keys() - schema.keys() if parsed[name][0]]
        except ConfigError as error:
            raise ConfigError(f"Example {index} of {path}: {error}", **fields_of(error) | {"path": path}) from error
        except CorruptDataError as error:
            raise ConfigError(
                f"Example {index} of {path}: {error} Pass a schema that fits all records: a list of any length has the "
                "shape (None,).",
                **fields_of(error) | {"path": path},
            ) from error
        if extra:
            raise ConfigError(
                f"Example {index} of {path} has the feature {min(extra)!r} besides {', '.join(map(repr, schema))}. "
                "Every example must have the same features; pass a schema that has them all.",
                name=min(extra),
                path=path,
            )
    return {
        name: column(name, feature, [row[name] for row in rows], start, f" of {path}")
        for name, feature in schema.items()
    }


def _value(name: str, feature: Feature, parsed: Mapping[str, tuple[str, list[Any]]]) -> Any:
    """Return the value of a feature, however its records store it."""
    kind = parsed[name][0] if name in parsed else ""
    stored = as_kept(feature, kind)
    # integers as they were stored: `column` looks whether the dtype holds them
    return example.value(name, replace(stored, dtype="int64") if stored.encoding == "int64" else stored, parsed)


def _schemas(paths: Sequence[str]) -> dict[str, Schema | None]:
    """Return the schema in the manifest next to each file, if the manifest names the file."""
    found: dict[str, Manifest | None] = {}
    schemas: dict[str, Schema | None] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in found:
            found[folder] = _manifest(folder or ".")
        manifest = found[folder]
        schemas[path] = manifest.schema if manifest is not None and name in manifest.files else None
    return schemas


def _manifest(folder: str) -> Manifest | None:
    try:
        with source_files.opened(f"{folder}/{manifests.NAME}") as file:
            return Manifest.from_bytes(file.read(manifests.LARGEST_BYTES))
    except (OSError, CorruptDataError):
        return None


def surveyed(paths: Sequence[str], *, most: int | None = None) -> Schema:
    """Return the schema that records show; see `inference.Seen`."""
    seen = Seen()
    chosen = paths if most is None else paths[:: -(-len(paths) // _SAMPLED_FILES)]
    rest = sorted(set(paths).difference(chosen))
    for number, path in enumerate([*chosen, *rest]):
        if number >= len(chosen) and seen.count:  # those that were to tell it have records
            break
        for index, payload in enumerate(islice(_payloads(path), None if most is None else -(-most // len(chosen)))):
            inference.need_one_example(payload, f"record {index} of {path}")
            try:
                parsed = inference.parsed(payload, tells=True)
                lists = {name: inference.shape_of(steps) for name, steps in example.sequences(payload).items()}
            except (ConfigError, CorruptDataError) as error:
                raise type(error)(f"record {index} of {path}: {error}", **fields_of(error) | {"path": path}) from error
            seen.add(parsed, path, lists)
    return seen.schema(paths[0])


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[Any]:
    with source_files.opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
