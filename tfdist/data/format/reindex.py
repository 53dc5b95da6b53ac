"""The index of a shard, made from the shard itself."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.contents import Contents
from tfdist.data.format.scan import Content, Found, walk
from tfdist.data.format.schema import Schema
from tfdist.data.format.shard_index import Index, arrays_of
from tfdist.errors import CorruptDataError

BATCH_RECORDS = 4096
BATCH_BYTES = 16 << 20


def batches(found: Iterator[Found]) -> Iterator[list[Found]]:
    """Yield what is found in lists of at most 4096 records, whose payloads have about 16 MiB at most."""
    while batch := list(islice(found, 1)):
        size = batch[0].size
        while len(batch) < BATCH_RECORDS and size < BATCH_BYTES and (more := next(found, None)) is not None:
            batch.append(more)
            size += more.size
        yield batch


class Gathered:
    """Arrays of an index, as they come."""

    def __init__(self, schema: Schema, layout: str) -> None:
        self._offsets: list[NDArray[np.int64]] = []
        empty = arrays_of(0, schema, layout)
        self._columns: dict[str, list[NDArray[Any]]] = {
            key: [np.zeros(shape, dtype)] for key, (dtype, shape) in empty.items() if key != "offset"
        }

    def add(self, offsets: Any, columns: Any) -> None:
        """Append records: where they begin, and their part of each column."""
        self._offsets.append(np.asarray(offsets, np.int64))
        for key, parts in self._columns.items():
            parts.append(columns[key])

    def index(self, end: int) -> Index:
        """Return the index; the last record ends at ``end``."""
        offsets = np.concatenate([*self._offsets, np.array([end], np.int64)])
        return Index(offsets, {key: np.concatenate(parts) for key, parts in self._columns.items()})


def index_anew(
    content: Content, name: str, schema: Schema, layout: str, *, examples: int, accept: Callable[[str], None] | None
) -> Index:
    """Return the index of a shard from its records.

    A corrupt record keeps its place, with zeros for what the index says of it, as long as there are as many records as
    there must be: whoever reads it finds it out by its checksum.
    """
    contents, gathered, count = Contents(schema, layout), Gathered(schema, layout), 0
    for batch in batches(walk(content)):
        rows = contents.of([found.payload or b"" for found in batch])
        for place, found in enumerate(batch):
            problem = found.problem or rows.problems.get(place, "")
            if problem:
                said = f"{name}: at byte {found.offset}, where record {count + place} should be, there is {problem}"
                if accept is None:
                    raise CorruptDataError(f"{said}.")
                accept(said)
        gathered.add([found.offset for found in batch], rows.columns)
        count += len(batch)
    if count != examples:
        raise CorruptDataError(
            f"{name} has {count} records or corrupt stretches; the manifest says {examples}. `tfdist data repair` "
            "keeps what is whole.",
            received=count,
            path=name,
        )
    return gathered.index(content.size)
