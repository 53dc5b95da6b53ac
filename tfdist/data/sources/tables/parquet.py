"""Parquet files as sources, through pyarrow: only the row groups that are needed, a few thousand rows at a time."""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from tfdist.data.format.schema import Schema
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import Options, examples_per_block
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError, CorruptDataError

_BUFFER_BYTES = 1 << 20  # of a column, so that a large row group is not read whole
_LEAST_ROWS = 64


def open_parquet(path: str, schema: Schema | None, options: Options) -> arrow_table.Table:
    with _opened(path) as file:
        types = file.schema_arrow
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        most = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
        if not types.names:
            raise ConfigError(f"{path} has no columns.")
        found = arrow_table.columns_of(types, schema, path, options, functools.cache(lambda: _first(file)))
    ends = list(itertools.accumulate(group.num_rows for group in groups))
    read = functools.partial(_rows, path, found.read, ends, max(_LEAST_ROWS, examples_per_block(most)))
    identity = source_files.identity("parquet", [path])
    return arrow_table.Table(found, read, types.names, identity, count=ends[-1] if ends else 0, seekable=True)


def _rows(
    path: str, columns: list[str], ends: list[int], step: int, start: int, stop: int | None
) -> tuple[int, Iterator[Any]]:
    """Return the first row and the record batches of the row groups that have some of the rows."""
    begins = [0, *ends]
    stop = begins[-1] if stop is None else stop
    groups = [i for i, end in enumerate(ends) if begins[i] < stop and end > start and end > begins[i]]
    return (begins[groups[0]], _batches(path, columns, groups, step)) if start < stop and groups else (start, iter(()))


def _batches(path: str, columns: list[str], groups: list[int], step: int) -> Iterator[Any]:
    with _opened(path) as file:
        yield from file.iter_batches(step, row_groups=groups, columns=columns, use_threads=False)


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
            raise CorruptDataError(f"{path} is not a Parquet file, or was cut off: {error}", path=path) from error
        yield stack.enter_context(file)
