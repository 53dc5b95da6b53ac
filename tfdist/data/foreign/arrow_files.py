"""Arrow files, among them what `save_to_disk` of Hugging Face's datasets leaves: mapped into memory, rows by number."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign
from tfdist.data.sources.protocol import NONE
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError, CorruptDataError

_Ids = NDArray[np.int64]
# begins each message of a stream, and with four zeros ends it; without them, Arrow reads a stream that was cut as whole
_MESSAGE = b"\xff\xff\xff\xff"
_END = b"\0\0\0\0"


class ArrowFiles(Foreign):
    """Rows of Arrow's stream or file format; the types of columns become features as those of tables do."""

    def __init__(self, files: Files) -> None:
        tables = [_table(files, number) for number in range(len(files.paths))]
        for number, table in enumerate(tables):
            if not table.schema.equals(tables[0].schema):
                raise ConfigError(
                    f"{files.paths[number]} has the columns {table.schema.to_string()!r}, {files.paths[0]} others: "
                    f"{tables[0].schema.to_string()!r}. All files must have the same.",
                    path=str(files.paths[number]),
                )
        ends = [np.cumsum([batch.num_rows for batch in table.to_batches()], dtype=np.int64) for table in tables]
        shards = [files.shard(place, table.num_rows, ends[place]) for place, table in enumerate(tables)]
        self._table = arrow_types.arrow().concat_tables(tables)
        where, empty = files.storage.url, not self._table.num_rows
        first = None if empty else lambda: arrow_table.first_rows(self._table)
        self._columns_of = arrow_table.columns_of(self._table.schema, None, where, NONE, first)
        super().__init__(files, self._columns_of.schema, shards)

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        wanted = list(names)
        paths = self._columns_of.paths
        few = self._table.select(list(dict.fromkeys(paths[name][0] for name in wanted)))
        rows = few.take(ids).combine_chunks().to_batches()[0] if len(ids) else few.schema.empty_table()
        return {
            name: self._columns_of.column(name, self.schema[name], self._columns_of.array(rows, name), int(ids[0]))
            for name in wanted
        }


def _table(files: Files, number: int) -> Any:
    arrow = arrow_types.arrow()
    path = str(files.paths[number])
    try:
        source = arrow.memory_map(path)
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        table = (arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)).read_all()
    except (arrow.ArrowException, OSError) as error:
        raise CorruptDataError(f"{path} is no whole file of Arrow: {error}", path=path) from error
    content = files.maps[number]
    mark = _MESSAGE + _END if content[:4].tobytes() == _MESSAGE else _END  # alone before Arrow 0.15
    if not is_file and content[-len(mark) :].tobytes() != mark:
        raise CorruptDataError(
            f"{path} is a stream of Arrow without its end; it was cut, or is being written.", path=path
        )
    return table


def open_saved(folder: Path) -> ArrowFiles:
    """A dataset that `save_to_disk` wrote; its state lists the files in their order."""
    state = folder / "state.json"
    try:
        found = json.loads(state.read_bytes())
        names: Sequence[str] = [entry["filename"] for entry in found["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{state} cannot be used: {error!r}", path=str(state)) from error
    if found.get("_indices_data_files"):
        raise ConfigError(
            f"{folder} has a list of chosen rows beside its data. Save it again: dataset.flatten_indices().",
            path=str(folder),
        )
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing or not names:
        raise CorruptDataError(f"{state} names {missing or 'no files'}, which must be in the folder.", path=str(state))
    return ArrowFiles(Files([folder / name for name in names], "arrow"))
