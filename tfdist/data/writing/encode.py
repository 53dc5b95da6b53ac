"""The encoding of blocks of examples as records and index columns, in chunks that fit a shard."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import example, record_framing
from tfdist.data.format.schema import FIXED, Feature, Schema, indexed_values, texts_of
from tfdist.data.sources.protocol import Block, Source, cut, length


@dataclass(frozen=True)
class Encoded:
    """The records of consecutive examples: their bytes, their ends (int64 ``[records]``), and their index columns."""

    data: Any
    ends: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    def cut(self, start: int, stop: int) -> "Encoded":
        if not start and stop == len(self.ends):
            return self  # the bytes of a view would be copied once more
        begin = int(self.ends[start - 1]) if start else 0
        end = int(self.ends[stop - 1]) if stop else 0
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return Encoded(memoryview(self.data)[begin:end], self.ends[start:stop] - begin, columns)


class Encoder:
    def __init__(self, schema: Schema, layout: str) -> None:
        self._schema = schema
        self._layout = layout
        self._template = example.Template(schema) if layout == FIXED else None

    def __call__(self, block: Block) -> Encoded:
        """Return the records of a block whose columns fit the schema."""
        count = length(block)
        if self._template is not None:
            framed = record_framing.frame_rows(self._template.encode(block, count))
            ends = np.arange(1, count + 1, dtype=np.int64) * framed.shape[1]
            return Encoded(framed.tobytes(), ends, {})
        return self._one_by_one(block, count)

    def _one_by_one(self, block: Block, count: int) -> Encoded:
        texts = texts_of(self._schema, self._layout)
        columns = {name: _entries(name, feature, block[name], count) for name, feature in self._schema.items()}
        starts = {name: np.empty(count, np.uint32) for name in texts}
        sizes = {name: np.empty(count, np.uint32) for name in texts}
        # the pieces of all records are joined once: a picture is copied no more often than it must be
        pieces: list[bytes] = []
        ends, end = np.empty(count, np.int64), 0
        for place in range(count):
            entries = [column[place] for column in columns.values()]
            size = sum(len(piece) for entry in entries for piece in entry)
            prefix = example.prefix(size)
            position = len(prefix)
            for name, entry in zip(columns, entries, strict=True):
                position += sum(map(len, entry))
                if name in sizes:  # the bytes end their entry
                    starts[name][place], sizes[name][place] = position - len(entry[-1]), len(entry[-1])
            payload = [prefix, *(piece for entry in entries for piece in entry)]
            pieces += [record_framing.header(position), *payload, record_framing.footer(payload)]
            end += position + record_framing.OVERHEAD_BYTES
            ends[place] = end
        found: dict[str, NDArray[Any]] = {}
        for name in texts:
            found[f"start:{name}"], found[f"size:{name}"] = starts[name], sizes[name]
        for name in indexed_values(self._schema, self._layout):
            found[f"value:{name}"] = np.asarray(block[name], self._schema[name].dtype)
        return Encoded(b"".join(pieces), ends, found)


def _entries(name: str, feature: Feature, column: Any, count: int) -> list[tuple[bytes, ...]]:
    """Return a feature's part of each example of a block, in pieces; the last piece is the bytes of a single text."""
    if feature.is_fixed:  # thousands at once: they differ in the last bytes alone
        template = example.Template(Schema({name: feature}))
        rows = template.encode({name: column}, count)
        skip = template.length - template.entry_bytes
        return [(row[skip:].tobytes(),) for row in rows]
    if feature.encoding == "bytes" and feature.shape == ():
        values = [example.as_bytes(value) for value in column]
        return [(example.text_prefix(name, len(value)), value) for value in values]
    return [(example.entry(name, feature, example.content_of(feature, column[place])),) for place in range(count)]


def blocks_from(source: Source, start: int) -> Iterator[Block]:
    """Return the blocks from an example on, by reading from the beginning if the source cannot start there."""
    return source.blocks(start, None) if source.seekable else cut(source.blocks(0, None), start, None)


class Chunks:
    """Blocks of examples, taken in chunks that fit the rest of a shard."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks
        self._block: Any = None
        self._encoded: Encoded | None = None

    def more(self) -> bool:
        while self._encoded is None and self._block is None:
            block = next(self._blocks, None)
            if block is None:
                return False
            self._block = block if length(block) else None
        return True

    def next(self, encode: Encoder, count: int) -> Iterator[Encoded]:
        while count and self.more():
            encoded = self.take(encode, room=count, room_bytes=0)
            assert encoded is not None
            count -= len(encoded.ends)
            yield encoded

    def take(self, encode: Encoder, *, room: int | None, room_bytes: int) -> Encoded | None:
        """Return the next records, up to a number of records and of bytes; None if none fits."""
        if self._encoded is None:
            self._encoded, self._block = encode(self._block), None
        encoded = self._encoded
        stop = room if room is not None else int((encoded.ends - encoded.ends[0]).searchsorted(max(room_bytes, 0)))
        if room is None and room_bytes > 0:
            stop = max(1, stop)
        stop = min(stop, len(encoded.ends))
        if stop <= 0:
            return None
        self._encoded = encoded.cut(stop, len(encoded.ends)) if stop < len(encoded.ends) else None
        return encoded.cut(0, stop)
