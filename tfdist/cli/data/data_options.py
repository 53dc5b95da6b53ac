"""Parts that commands of `tfdist data` share: options, the report of damage, and the table of a schema."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from tfdist import data
from tfdist.cli.common.progress import Watch
from tfdist.data.foreign.foreign_files import CONTENTS, EXAMPLES
from tfdist.errors import ConfigError
from tfdist.validation import as_bytes


def size(_ctx: Any, _param: Any, value: str | None) -> int | None:
    """Parse a number with an optional unit, and return it in bytes."""
    try:
        return None if value is None else as_bytes(value)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def driver_options(_ctx: Any, _param: Any, value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{value!r} is not a JSON object; write one such as '{{\"anon\": true}}'.")
    return found


def nulls_of(_ctx: Any, _param: Any, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, given = value.partition("=")
        if not equals or not name or name in found:
            raise click.BadParameter(f"{value!r} is not COLUMN=VALUE, or repeats a column; write one such as age=-1.")
        found[name] = given
    return found


storage_option = click.option(
    "--storage-options", callback=driver_options, metavar="JSON", help="Options of a URL's driver: '{\"anon\": true}'."
)


follow_option = click.option(
    "--follow-symlinks",
    is_flag=True,
    help="Read files of DIRECTORY that are symbolic links to files elsewhere, as in the caches of DVC and of hubs.",
)


records_option = click.option(
    "--records",
    type=click.Choice(CONTENTS),
    default=EXAMPLES,
    show_default=False,
    help="Kind of records; raw: any bytes.",
)


_SCHEMA = 'What an example consists of, as JSON: {"x": {"dtype": "float32", "shape": [40]}, ...}, or a manifest.'


def schema_option(text: str = _SCHEMA) -> Callable[[Any], Any]:
    kind = click.Path(dir_okay=False, exists=True, path_type=Path)
    return click.option("--schema", "schema_file", type=kind, metavar="FILE", help=text)


def schema_of(path: Path) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.UsageError(f"--schema {path} is not JSON: {error}") from error
    return data.Schema.from_json(found.get("schema", found) if isinstance(found, dict) else found)


_MOST_LINES = 50


def echo_some(lines: list[str], *, last: int) -> None:
    """Print lines; of very many, print only the first ones, and the last ones, which are a summary."""
    details, summary = lines[: len(lines) - last], lines[len(lines) - last :]
    for line in details[:_MOST_LINES]:
        click.echo(line)
    if len(details) > _MOST_LINES:
        click.echo(f"... and {len(details) - _MOST_LINES} more; --json lists all.")
    for line in summary:
        click.echo(line)


class Reading(Watch):
    def __init__(self, what: str) -> None:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        super().__init__(TextColumn("{task.description}"), *columns)
        self._task = self.progress.add_task(what, total=None)

    def show(self, read: int, total: int) -> None:
        # several threads call this, which rich allows
        self.progress.update(self._task, total=total, completed=read)


_MOST_NAMES = 6


def schema_table(schema: Mapping[str, Mapping[str, Any]], label: str | None) -> Table:
    table = Table("feature", "dtype", "shape", "stored as", "", box=None)
    for name, feature in schema.items():
        shape = str(tuple("any" if dim is None else dim for dim in feature["shape"])).replace("'", "")
        notes = escape(", ".join(_notes(feature, is_label=name == label)))
        table.add_row(escape(name), feature["dtype"], shape, feature["encoding"], notes)
    return table


def _notes(feature: Mapping[str, Any], *, is_label: bool) -> list[str]:
    found = ["label"] if is_label else []
    if feature.get("is_image"):
        found.append("picture")
    if unit := feature.get("unit"):
        found.append(unit)
    if names := feature.get("names"):
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        found.append(f"{len(names)} classes: {shown}")
    return found


def readable(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
