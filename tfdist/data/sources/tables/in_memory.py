"""Tables in memory that Arrow can read (pyarrow, pandas, polars, DuckDB and others), by the protocols they share."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from tfdist.data.format.schema import Schema
from tfdist.data.sources.protocol import NONE, Options, examples_per_block
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError

_WHERE = "the table"
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls one without a name


def open_table(examples: Any, schema: Schema | None = None, options: Options = NONE) -> arrow_table.Table:
    """A table as a source: its columns are features, its rows examples.

    An index of pandas is a column if it has a name. Names of columns that are no text become text.
    """
    table = _arrow_table(examples)
    table = table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
    if not table.num_columns or not table.num_rows:
        raise ConfigError(
            f"{_WHERE} has {table.num_rows} rows and {table.num_columns} columns; at least one of both is needed.",
            name="examples",
        )
    found = arrow_table.columns_of(table.schema, schema, _WHERE, options, lambda: arrow_table.first_rows(table))
    kinds = {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
    read = functools.partial(_rows, table.select(found.read), examples_per_block(table.nbytes // table.num_rows))
    identity = {"kind": "table", "count": table.num_rows, "columns": kinds}
    return arrow_table.Table(found, read, table.column_names, identity, count=table.num_rows, seekable=True)


def _rows(table: Any, step: int, start: int, stop: int | None) -> tuple[int, Iterator[Any]]:
    length = None if stop is None else max(0, stop - start)
    return start, iter(table.slice(start, length).to_batches(max_chunksize=step))


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
