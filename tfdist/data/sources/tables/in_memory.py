"""Tables in memory that Arrow can read (pyarrow, pandas, polars, DuckDB and others), by the protocols they share."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import Schema
from tfdist.data.sources.protocol import Block, examples_per_block
from tfdist.data.sources.source_options import NONE, Options
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError

_WHERE = "the table"
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls one without a name


def open_table(examples: Any, schema: Schema | None = None, options: Options = NONE) -> "Table":
    """A table as a source: its columns are features, its rows examples.

    An index of pandas is a column if it has a name. Names of columns that are no text become text.
    """
    found = _arrow_table(examples)
    found = found.drop_columns([name for name in found.column_names if _INDEX.fullmatch(name)])
    if not found.num_columns or not found.num_rows:
        raise ConfigError(
            f"{_WHERE} has {found.num_rows} rows and {found.num_columns} columns; at least one of both is needed.",
            name="examples",
        )
    return Table(
        found, arrow_table.columns_of(found.schema, schema, _WHERE, options, lambda: arrow_table.first_rows(found))
    )


class Table:
    """The rows of a table in memory, a `Source` that is pickled together with it."""

    seekable = True
    identifies = False
    sizes: NDArray[np.int64] | None = None

    def __init__(self, rows: Any, found: arrow_table.Columns) -> None:
        self._rows, self._found, self.schema = rows, found, found.schema
        self.columns: list[str] = list(rows.column_names)
        self.count: int | None = rows.num_rows
        self._step = examples_per_block(rows.nbytes // rows.num_rows)
        self.identity: dict[str, Any] = {
            "kind": "table",
            "count": rows.num_rows,
            "columns": {name: str(kind) for name, kind in zip(rows.schema.names, rows.schema.types, strict=True)},
            **found.identity,
        }

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        end = min(self.count or 0, self.count or 0 if stop is None else stop)
        rows = self._rows.select(self._found.read).slice(start, max(0, end - start))
        at = start
        for batch in rows.to_batches(max_chunksize=self._step):
            if batch.num_rows:
                yield self._found.block(batch, at)
            at += batch.num_rows


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
