"""Arrow files, among them what `save_to_disk` of Hugging Face's datasets leaves: mapped into memory, rows by number."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign
from tfdist.data.format.schema import Schema
from tfdist.data.order.class_shares import places_of
from tfdist.data.sources.protocol import Options
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.data.sources.tables.arrow_ipc import saved_files, table_of
from tfdist.errors import ConfigError

_Ids = NDArray[np.int64]


class ArrowFiles(Foreign):
    """Rows of Arrow's stream or file format; the types of columns become features as those of tables do."""

    def __init__(self, files: Files) -> None:
        tables = [table_of(str(path)) for path in files.paths]
        for number, table in enumerate(tables):
            if not table.schema.equals(tables[0].schema):
                raise ConfigError(
                    f"{files.paths[number]} has the columns {table.schema.to_string()!r}, {files.paths[0]} others: "
                    f"{tables[0].schema.to_string()!r}. All files must have the same.",
                    path=str(files.paths[number]),
                )
        ends = [np.cumsum([batch.num_rows for batch in table.to_batches()], dtype=np.int64) for table in tables]
        shards = [files.shard(place, table.num_rows, ends[place]) for place, table in enumerate(tables)]
        self._table = arrow_types.without_views(arrow_types.arrow().concat_tables(tables))
        self._batches = self._table.to_batches()
        self._batch_ends = np.cumsum([batch.num_rows for batch in self._batches])
        super().__init__(files, shards)

    def _schema(self) -> Schema:
        self._columns_of = arrow_table.columns_of(
            self._table.schema, None, self.files.storage.url, Options(), lambda: arrow_table.first_rows(self._table)
        )
        return self._columns_of.schema

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        wanted = list(names)
        paths = self._columns_of.paths
        rows = self._rows(ids, list(dict.fromkeys(paths[name][0] for name in wanted)))
        return {name: self._column(ids, rows, name) for name in wanted}

    def _rows(self, ids: _Ids, columns: list[str]) -> Any:
        """Take rows batch by batch: of a whole table, Arrow first copies each column of texts."""
        if not len(ids):
            return self._table.select(columns).schema.empty_table()
        places, taken = [], []
        for number, here in places_of(np.searchsorted(self._batch_ends, ids, side="right")):
            batch = self._batches[number].select(columns)
            places.append(here)
            taken.append(batch.take(ids[here] - (self._batch_ends[number] - batch.num_rows)))
        table = arrow_types.arrow().Table.from_batches(taken).take(np.argsort(np.concatenate(places)))
        return table.combine_chunks().to_batches()[0]

    def _column(self, ids: _Ids, rows: Any, name: str) -> Any:
        found, feature = self._columns_of, self.schema[name]
        array = found.array(rows, name)
        try:
            return found.column(name, feature, array, int(ids[0]) if len(ids) else 0)
        except ConfigError as error:
            for place, number in enumerate(ids.tolist()):  # to name the row
                try:
                    found.column(name, feature, array.slice(place, 1), number)
                except ConfigError as of_row:
                    raise self.bad(
                        number,
                        f"{of_row} `tfdist data write` with this option makes a directory without nulls."
                        if "--null" in str(of_row)
                        else str(of_row),
                    ) from error
            raise


def open_saved(folder: Path) -> ArrowFiles:
    """A dataset that `save_to_disk` wrote; its state lists the files in their order."""
    return ArrowFiles(Files([Path(path) for path in saved_files(folder)], "arrow"))
