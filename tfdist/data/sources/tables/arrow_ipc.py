"""Files in Arrow's stream or file format, mapped into memory, and folders of them as `save_to_disk` leaves them."""

import functools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfdist.data.format.schema import Schema
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import Options, examples_per_block
from tfdist.data.sources.tables import arrow_table, arrow_types
from tfdist.errors import ConfigError, CorruptDataError

#: the file by which a folder of `save_to_disk` of Hugging Face's datasets is recognized
STATE = "state.json"
# begins each message of a stream, and with four zeros ends it; without them, Arrow reads a stream that was cut as whole
_MESSAGE = b"\xff\xff\xff\xff"
_END = b"\0\0\0\0"


def open_arrow(path: str, schema: Schema | None, options: Options) -> arrow_table.Table:
    """One file as a source."""
    table = table_of(path)
    if not table.num_columns:
        raise ConfigError(f"{path} has no columns.")
    first = (lambda: arrow_table.first_rows(table)) if table.num_rows else None
    found = arrow_table.columns_of(table.schema, schema, path, options, first)
    step = examples_per_block(table.nbytes // max(1, table.num_rows))
    read = functools.partial(_batches, path, found.read, step)
    identity = source_files.identity("arrow", [path])
    return arrow_table.Table(found, read, table.schema.names, identity, count=table.num_rows, seekable=True)


def _batches(path: str, columns: list[str], step: int, start: int, stop: int | None) -> tuple[int, Iterator[Any]]:
    return arrow_table.batches_of(table_of(path).select(columns), step, start, stop)


def table_of(path: str) -> Any:
    """The rows of a file; one that was cut is an error."""
    arrow = arrow_types.arrow()
    if source_files.is_url(path):
        with source_files.opened(path) as file:
            source = arrow.BufferReader(file.read())
    else:
        try:
            source = arrow.memory_map(path)
        except (arrow.ArrowException, OSError) as error:
            raise CorruptDataError(f"{path} is not a whole file of Arrow: {error}", path=path) from error
    try:
        size = source.size()
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        begin = source.read(4)
        mark = _MESSAGE + _END if begin == _MESSAGE else _END  # alone before Arrow 0.15
        source.seek(max(0, size - len(mark)))
        end = source.read(len(mark))
        source.seek(0)
        table = (arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)).read_all()
    except (arrow.ArrowException, OSError) as error:
        raise CorruptDataError(f"{path} is not a whole file of Arrow: {error}", path=path) from error
    if not is_file and end != mark:
        raise CorruptDataError(
            f"{path} is a stream of Arrow without its end; it was cut, or is being written.", path=path
        )
    return table


def is_saved(folder: str | os.PathLike[str]) -> bool:
    """`save_to_disk` wrote a folder; others may have a file of that name."""
    return has_field(Path(folder, STATE), "_data_files")


def has_field(path: Path, field: str) -> bool:
    """Return whether a file is a JSON object with this field."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and field in found


def saved_files(folder: str | os.PathLike[str]) -> list[str]:
    """The files of such a folder in their order, which its state lists."""
    state = Path(folder, STATE)
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
    missing = [name for name in names if Path(name).name != name or not Path(folder, name).is_file()]
    if missing or not names:
        raise CorruptDataError(f"{state} names {missing or 'no files'}, which must be in the folder.", path=str(state))
    return [os.path.join(folder, name) for name in names]
