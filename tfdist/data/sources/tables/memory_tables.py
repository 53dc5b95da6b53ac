"""Tables in memory as sources (pyarrow, pandas, polars, DuckDB and others, by common protocols), and Ray's data sets.

A `ray.data.Dataset` is read from its beginning, in the order of the data set. By default Ray yields blocks in the order
in which tasks end. Then the number of an example means nothing, and an interrupted run could not resume, so such a data
set is refused.
"""

import functools
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from tfdist import validation
from tfdist.data.format.schema import Schema
from tfdist.data.sources.protocol import Options, examples_per_block
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError, ConfigTypeError

_TABLE, _WHERE = "the table", "the ray.data.Dataset"
_INDEX = re.compile(r"__index_level_\d+__")  # pandas' name of an index without one
_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "arrow.fixed_shape_tensor")


def open_table(examples: Any, schema: Schema | None, options: Options) -> arrow_table.Table:
    """Return a table as a source; a pandas index becomes a column if it has a name, and column names become text."""
    table = _arrow_table(examples)
    table = table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
    if not table.num_columns or not table.num_rows:
        raise ConfigError(
            f"{_TABLE} has {table.num_rows} rows and {table.num_columns} columns; at least one of both is needed.",
            name="examples",
        )
    found = arrow_table.columns_of(table.schema, schema, _TABLE, options, lambda: arrow_table.first_rows(table))
    kinds = {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
    step = examples_per_block(table.nbytes // table.num_rows)
    rows = table.select(found.read)
    read = functools.partial(arrow_table.batches_of, rows, step)
    part = functools.partial(arrow_table.part_of_rows, rows, step)
    identity = {"kind": "table", "count": table.num_rows, "columns": kinds}
    return arrow_table.Table(found, read, table.column_names, identity, count=table.num_rows, seekable=True, part=part)


def _arrow_table(examples: Any) -> Any:
    arrow = arrow_types.arrow()
    try:
        if hasattr(examples, "__arrow_c_stream__") or hasattr(examples, "__arrow_c_array__"):
            return arrow.table(examples)
        from pyarrow import interchange

        return interchange.from_dataframe(examples)
    except (arrow.ArrowException, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(
            f"examples is a {type(examples).__module__}.{type(examples).__name__} that Arrow cannot read: {error} "
            "Convert the column, or pass a mapping of names to arrays."
        ) from error


def is_of_ray(value: Any) -> bool:
    """Return whether a value comes from `ray.data`, which is not loaded for this check."""
    return type(value).__module__.partition(".")[0] == "ray" and hasattr(value, "iter_batches")


def open_ray(dataset: Any, schema: Schema | None, options: Options) -> arrow_table.Table:
    """Return a `ray.data.Dataset` as a source; it is executed as far as its first block."""
    if not hasattr(dataset, "context") or not hasattr(dataset, "materialize"):
        raise ConfigTypeError(
            f"examples is a {type(dataset).__module__}.{type(dataset).__name__}; which examples such a part of a "
            "ray.data.Dataset has depends on the number of workers and on their speed. Write the Dataset itself, once, "
            "before the job; every worker reads what was written, and takes its own part of it.",
            name="examples",
            received=type(dataset).__name__,
        )
    is_materialized = type(dataset).__name__ == "MaterializedDataset"
    if not is_materialized and not dataset.context.execution_options.preserve_order:
        raise ConfigError(
            f"{_WHERE} has no order: it gives blocks as tasks end. Before it is made, set "
            "ray.data.DataContext.get_current().execution_options.preserve_order = True; or, where the memory of the "
            "cluster has room for it, pass dataset.materialize().",
            name="preserve_order",
            received=False,
        )
    if dataset.context.max_errored_blocks:
        raise ConfigError(
            f"{_WHERE} may leave out examples: its max_errored_blocks is {dataset.context.max_errored_blocks}. Set "
            "ray.data.DataContext.get_current().max_errored_blocks = 0 before it is made.",
            name="max_errored_blocks",
            received=dataset.context.max_errored_blocks,
        )
    reading = _tables(dataset, schema)
    first = next(reading, None)
    if first is None:
        raise ConfigError(f"{_WHERE} has no rows; at least one is needed.", name="examples")
    found = arrow_table.columns_of(first.schema, schema, _WHERE, options, lambda: arrow_table.first_rows(first))
    count = int(dataset.count()) if is_materialized else None
    begun = [chain([first], reading)]
    columns = None if schema is not None else frozenset(first.column_names)

    def read(start: int, stop: int | None) -> tuple[int, Iterator[Any]]:
        return 0, _batches(begun.pop() if begun else _tables(dataset, found.schema), found.read, columns)

    return arrow_table.Table(found, read, first.column_names, {"kind": "ray", "count": count}, count=count)


def _batches(tables: Iterator[Any], wanted: list[str], columns: frozenset[str] | None) -> Iterator[Any]:
    """Yield record batches of tables that have the same columns, or the columns of a schema."""
    at = 0
    for rows in tables:
        missing = [name for name in wanted if name not in rows.column_names]
        if missing:
            raise ConfigError(
                f"Example {at} of {_WHERE} has no column {missing[0]!r}, which those before have.", name=missing[0]
            )
        more = set() if columns is None else set(rows.column_names) - columns
        if more:
            raise ConfigError(
                f"Example {at} of {_WHERE} has the column {min(more)!r}, which those before have not. Give all of "
                "them the same columns, or pass a schema.",
                name=min(more),
            )
        yield from rows.select(wanted).to_batches(max_chunksize=examples_per_block(rows.nbytes // rows.num_rows))
        at += rows.num_rows


def _tables(dataset: Any, wanted: Schema | None) -> Iterator[Any]:
    """Yield the blocks that have rows, with tensors as lists of fixed sizes."""
    for rows in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        if rows.num_rows:
            yield _without_tensors(rows, wanted)


def _without_tensors(rows: Any, wanted: Schema | None) -> Any:
    for place, field in enumerate(rows.schema):
        kind = getattr(field.type, "extension_name", "")
        if kind in _TENSORS:
            rows = rows.set_column(place, field.name, _lists(rows.column(place), tuple(field.type.shape)))
        elif kind.startswith("ray.data.") and (wanted is None or field.name in wanted):
            raise ConfigError(
                f"column {field.name!r} of {_WHERE} is {validation.shown(field.type)}: objects of Python, or arrays of "
                "several shapes. Make arrays of one shape, lists or bytes of it first: dataset.map_batches(...).",
                name=field.name,
                received=validation.shown(field.type),
            )
    return rows


def _lists(column: Any, shape: tuple[int, ...]) -> Any:
    """Return a column of tensors as nested lists, whose sizes are the shape."""
    arrow = arrow_types.arrow()
    if column.null_count:
        raise ConfigError(f"a tensor of {_WHERE} is null; leave its row out first: dataset.filter(...).")
    parts = [
        chunk.to_numpy_ndarray() if hasattr(chunk, "to_numpy_ndarray") else chunk.to_numpy(zero_copy_only=False)
        for chunk in column.chunks  # Arrow's own tensors, and Ray's
    ]
    found = arrow.array(np.concatenate(parts).reshape(-1))
    for size in reversed(shape):
        found = arrow.FixedSizeListArray.from_arrays(found, size)
    return found
