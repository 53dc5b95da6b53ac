"""The division of examples into shards, and the writing of a shard with its index, whole or not at all."""

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.data_manifest import IndexFile, Shard
from tfdist.data.format.record_framing import OVERHEAD_BYTES
from tfdist.data.format.revisions import index_name
from tfdist.data.format.schema import FIXED, Schema
from tfdist.data.format.shard_index import Index
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import Source
from tfdist.data.writing.encode import Encoded, Encoder
from tfdist.errors import ConfigError
from tfdist.storage.directory import Storage, storage
from tfdist.validation import counted

#: bytes of a shard, where their number is not given
SHARD_BYTES = 256 << 20


def cuts(
    count: int, *, sizes: NDArray[np.int64] | None, example_bytes: int, num_shards: int | None, shard_bytes: int
) -> list[tuple[int, int]]:
    """Return the bounds of each shard: contiguous ranges of examples with nearly equal bytes."""
    total = count * example_bytes if sizes is None else int(sizes.sum())
    shards = num_shards or min(count, max(1, -(-total // shard_bytes)))
    if shards > count:
        raise ConfigError(
            f"num_shards is {shards}, and the source has {counted(count, 'example')}; a shard has one at least. Give a "
            "smaller num_shards (--num-shards).",
            name="num_shards",
            received=shards,
        )
    if sizes is None:
        ends = [round(count * (shard + 1) / shards) for shard in range(shards)]
    else:
        ends = _balanced(np.cumsum(sizes), shards)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _balanced(sums: Any, shards: int) -> list[int]:
    """Return the ends of pieces of which each has about its share, and at least one example."""
    count, ends, begin = len(sums), [], 0
    for shard in range(1, shards):
        goal = int(sums[-1]) * shard / shards  # Python's numbers: the product may need more than 64 bits
        end = int(np.searchsorted(sums, goal))
        # the cut before or behind the example that crosses the line, whichever is nearer
        if end and goal - sums[end - 1] > sums[end] - goal:
            end += 1
        elif not end:
            end = 1
        begin = min(max(end, begin + 1), count - (shards - shard))
        ends.append(begin)
    return [*ends, count]


class ShardWriter:
    """A writer of one shard, for a ``with`` block; nothing is visible if the block raises an error."""

    def __init__(self, storage: Storage, name: str, layout: str) -> None:
        self._storage = storage
        self._name = name
        self._layout = layout
        self._ends: list[NDArray[np.int64]] = []
        self._columns: list[Any] = []
        self._crc = 0
        self._footers: list[bytes] = []  # the checksums of the first payload and of the last one
        self.bytes = 0
        self.examples = 0
        self.shard: Shard | None = None

    def __enter__(self) -> "ShardWriter":
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(self._storage.create(self._name))
        return self

    def add(self, encoded: Encoded) -> None:
        data = encoded.data if isinstance(encoded.data, bytes) else bytes(encoded.data)
        self._file.write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        if len(encoded.ends):
            first = int(encoded.ends[0])
            self._footers = [*self._footers[:1], data[first - 4 : first], data[-4:]]
        self._ends.append(encoded.ends + self.bytes)
        self._columns.append(encoded.columns)
        self.bytes += len(data)
        self.examples += len(encoded.ends)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if error is None:
            self.shard = self._described()

    def _described(self) -> Shard:
        offsets = np.concatenate([np.zeros(1, np.int64), *self._ends])
        lengths = np.diff(offsets) - OVERHEAD_BYTES
        ends, index = [int.from_bytes(footer, "little") for footer in self._footers], None
        if self._layout != FIXED:
            names = self._columns[0] if self._columns else {}
            columns = {name: np.concatenate([found[name] for found in self._columns]) for name in names}
            index = store_index(self._storage, self._name, Index(offsets, columns))
        return Shard(
            file=self._name,
            examples=self.examples,
            bytes=self.bytes,
            crc32c=self._crc,
            smallest=int(lengths.min()) if len(lengths) else 0,
            largest=int(lengths.max()) if len(lengths) else 0,
            index=index,
            ends=(ends[0], ends[-1]) if ends else None,
        )


def store_index(storage: Storage, shard: str, index: Index, *, name: str = "") -> IndexFile:
    """Write the index of a shard, under its own name or another, and return its entry in a manifest."""
    data, name = index.to_bytes(), name or index_name(shard)
    with storage.create(name) as file:
        file.write(data)
    return IndexFile(file=name, bytes=len(data), crc32c=google_crc32c.value(data))


def one_shard(
    place: Storage,
    schema: Schema,
    layout: str,
    name: str,
    source: Source,
    start: int,
    stop: int,
    report: Callable[[int, int], None] | None = None,
) -> Shard:
    encode = Encoder(schema, layout)
    with ShardWriter(place, name, layout) as writer:
        for block in source.blocks(start, stop):
            writer.add(encode(block))
            if report is not None:
                report(writer.examples, writer.bytes)
    assert writer.shard is not None
    if writer.examples != stop - start:
        place.remove(name)
        place.remove(index_name(name))
        raise ConfigError(
            f"the source announced examples {start} to {stop} and gave {writer.examples} of them. Was it changed while "
            "it was read?"
        )
    return writer.shard


def write_shard(
    url: str,
    storage_options: Mapping[str, Any] | None,
    source_options: Mapping[str, Any] | None,
    number: int,
    *shard: Any,
) -> tuple[int, Shard]:
    """Write a shard as `one_shard` does, with the rest of its arguments; return its number as well."""
    with source_files.driven_by(source_options):
        return number, one_shard(storage(url, storage_options=storage_options), *shard)
