"""From blocks of examples to the bytes of records, and to what an index says of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import example, record_framing
from tfdist.data.format.record_layout import FIXED, indexed_values
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.format.shard_index import texts_of


@dataclass(frozen=True)
class Encoded:
    """Records of consecutive examples.

    Attributes:
        data: their bytes, one after the other.
        ends: int64, ``[records]``: where each ends in them.
        columns: the arrays of an index, without offsets.
    """

    data: Any
    ends: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    def cut(self, start: int, stop: int) -> "Encoded":
        """Return the records from ``start`` to ``stop``."""
        begin = int(self.ends[start - 1]) if start else 0
        end = int(self.ends[stop - 1]) if stop else 0
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return Encoded(memoryview(self.data)[begin:end], self.ends[start:stop] - begin, columns)


class Encoder:
    """Encodes blocks of a schema."""

    def __init__(self, schema: Schema, layout: str) -> None:
        self._schema = schema
        self._layout = layout
        self._template = example.Template(schema) if layout == FIXED else None

    def __call__(self, block: Mapping[str, Any]) -> Encoded:
        """Return the records of a block whose columns fit the schema."""
        count = len(next(iter(block.values())))
        if self._template is not None:
            framed = record_framing.frame_rows(self._template.encode(block, count))
            ends = np.arange(1, count + 1, dtype=np.int64) * framed.shape[1]
            return Encoded(framed.tobytes(), ends, {})
        return self._one_by_one(block, count)

    def _one_by_one(self, block: Mapping[str, Any], count: int) -> Encoded:
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
