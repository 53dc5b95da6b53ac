"""Parquet files through pyarrow: the row groups that are needed, a few thousand rows at a time."""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import Schema
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import Block, cut, examples_per_block
from tfdist.data.sources.source_options import NONE, Options
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError, CorruptDataError

_BUFFER_BYTES = 1 << 20  # of a column, so that a large row group is not read whole
_LEAST_ROWS = 64


def open_parquet(path: str, schema: Schema | None = None, options: Options = NONE) -> "Parquet":
    with _opened(path) as file:
        types = file.schema_arrow
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        rows = [group.num_rows for group in groups]
        most = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
        if not types.names:
            raise ConfigError(f"{path} has no columns.")
        found = arrow_table.columns_of(types, schema, path, options, functools.cache(lambda: _first(file)))
    return Parquet(path, found, list(types.names), rows, max(_LEAST_ROWS, examples_per_block(most)))


class Parquet:
    """The rows of one file; pickled by its path."""

    seekable = True
    sizes: NDArray[np.int64] | None = None

    def __init__(self, path: str, found: arrow_table.Columns, columns: list[str], rows: list[int], step: int) -> None:
        self.schema, self.columns, self._path, self._step = found.schema, columns, path, step
        self._found = found
        self._ends = list(itertools.accumulate(rows))
        self.count: int | None = sum(rows)
        self.identity: dict[str, Any] = {**source_files.identity("parquet", [path]), **found.identity}
        self.identifies = source_files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield blocks; row groups without any of the rows are not read."""
        stop = min(self.count or 0, self.count or 0 if stop is None else stop)
        begins = [0, *self._ends]
        groups = [i for i, end in enumerate(self._ends) if begins[i] < stop and end > start and end > begins[i]]
        if start >= stop or not groups:
            return
        first = begins[groups[0]]
        with _opened(self._path) as file:
            yield from cut(self._read(file, groups, first), start - first, stop - first)

    def _read(self, file: Any, groups: list[int], at: int) -> Iterator[Block]:
        for batch in file.iter_batches(self._step, row_groups=groups, columns=self._found.read, use_threads=False):
            yield self._found.block(batch, at)
            at += batch.num_rows


def _first(file: Any) -> Any:
    rows = next((batch for batch in file.iter_batches(_LEAST_ROWS, use_threads=False) if batch.num_rows), None)
    return arrow_types.arrow().RecordBatch.from_pylist([], file.schema_arrow) if rows is None else rows


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    arrow = arrow_types.arrow()
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(source_files.opened(path)) if source_files.is_url(path) else path
            file = parquet.ParquetFile(handle, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except arrow.ArrowInvalid as error:
            raise CorruptDataError(f"{path} is no Parquet file, or was cut off: {error}", path=path) from error
        yield stack.enter_context(file)
