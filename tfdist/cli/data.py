"""`tfdist data`: parse, call `tfdist.data`, show how far it is, print what was done."""

import importlib
import json
import re
import time
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tfdist import data
from tfdist.cli.interrupts import unwinding
from tfdist.cli.progress import Watch

_CHECKS = ("index", "info", "verify", "repair")
_STEP_PERCENT = 10  # for a line where there is no terminal
_STEP_BYTES = 1 << 30  # the same where nobody knows how much there will be
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(_ctx: Any, _param: Any, value: str | None) -> int | None:
    """Return the bytes that a number with an optional unit says.

    Example:
        >>> size(None, None, "256MiB"), size(None, None, "1.5 GB")
        (268435456, 1500000000)
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value, re.IGNORECASE)
    number = int(float(found[1]) * _UNITS.get(found[2].lower(), 0)) if found else 0
    if not number:
        raise click.BadParameter(f"{value!r} is no size; write 500000, 256MiB or 1.5GB.")
    return number


def driver_options(_ctx: Any, _param: Any, value: str | None) -> dict[str, Any] | None:
    """Return what a driver of fsspec takes, which is given as JSON.

    Example:
        >>> driver_options(None, None, '{"anon": true}')
        {'anon': True}
    """
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{value!r} is no JSON object; write '{{\"anon\": true}}', say.")
    return found


storage_option = click.option(
    "--storage-options",
    callback=driver_options,
    metavar="JSON",
    help="What fsspec's driver takes for DIRECTORY, where that is a URL: '{\"anon\": true}'.",
)


class _Group(click.Group):
    """Imports the commands that look at examples when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_CHECKS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _CHECKS:
            return super().get_command(ctx, cmd_name)
        found = getattr(importlib.import_module("tfdist.cli.data_check"), cmd_name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def command() -> None:
    """Write examples as TFRecord files that are read shuffled, divided and resumed exactly; find and repair damage."""


@command.command(
    short_help="Write examples as TFRecord shards, with an index and a manifest.",
    epilog="Exit code: 0 when all was written, 1 when it was not, 2 when the request makes no sense.",
)
@click.argument("source", nargs=-1, required=True)
@click.argument("directory")
@click.option("--num-shards", type=click.IntRange(1), metavar="N", help="How many TFRecord files.")
@click.option("--shard-bytes", callback=size, metavar="SIZE", help="About how large each is; 256MiB by default.")
@click.option("--label", metavar="NAME", help='The feature that is learnt; "label" by default, if there is one.')
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='What an example consists of, as JSON: {"x": {"dtype": "float32", "shape": [40]}, ...}.',
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Processes that write at once, at most one per shard; as many as help by default. Pictures, local TFRecord, "
    "NumPy, Parquet and HDF5 files are read by several, Parquet and HDF5 with texts or lists if --num-shards is given; "
    "CSV, compressed and remote TFRecord files by one.",
)
@click.option("--overwrite", "exists", flag_value="overwrite", help="Replace what DIRECTORY holds already.")
@click.option("--keep", "exists", flag_value="keep", help="Leave them, write nothing, and end well.")
@storage_option
@click.option(
    "--source-options",
    callback=driver_options,
    metavar="JSON",
    help="The same for SOURCE.",
)
def write(
    source: tuple[str, ...],
    directory: str,
    num_shards: int | None,
    shard_bytes: int | None,
    label: str | None,
    schema_file: Path | None,
    processes: int | None,
    exists: str | None,
    storage_options: dict[str, Any] | None,
    source_options: dict[str, Any] | None,
) -> None:
    """Write the examples of SOURCE as TFRecord shards, an index and a manifest into DIRECTORY.

    SOURCE is files of one kind, a folder of them, or a wildcard: CSV (.csv, .tsv, .csv.gz), Parquet, HDF5
    (file.h5:/group), NumPy (.npz, .npy), TFRecord (.tfrecord, .tfrecord.gz), or a folder with one folder of pictures
    per class. Both may be URLs that fsspec knows, such as s3://bucket/folder.

    \b
    tfdist data write photos/train data/train            pictures, a folder per class: features image and label
    tfdist data write 'tables/*.parquet' data/rows       every column a feature; the order is that of the files
    tfdist data write iris.csv data/iris --label species
    tfdist data write digits.h5:/train data/digits --num-shards 8
    tfdist data write old/*.tfrecord data/new            TFRecords of any origin, with an index and balanced

    A run that was interrupted goes on where it stopped when the same command is started again, and ends with the same
    bytes; with --overwrite it begins anew. Nothing appears in DIRECTORY before it is whole. What SOURCE is, is told by
    names; what a value is, by the first examples or by --schema. An example that does not fit ends the run with its
    number.
    """
    schema = None if schema_file is None else schema_of(schema_file)
    started = time.monotonic()
    with unwinding(), _Watch() as watch:
        manifest = data.write(
            source[0] if len(source) == 1 else list(source),
            directory,
            num_shards=num_shards,
            shard_bytes=shard_bytes,
            schema=schema,
            label=label,
            processes=processes,
            exists=exists or "raise",
            progress=watch.show,
            storage_options=storage_options,
            source_options=source_options,
        )
    click.echo(described(manifest, directory, seconds=time.monotonic() - started))


def described(manifest: Any, directory: str, *, seconds: float) -> str:
    """Return what a directory holds after it was written, in a line."""
    shards = len(manifest.shards)
    return (
        f"{directory} has {manifest.examples} examples in {shards} shard{'s' * (shards != 1)}, "
        f"{readable(manifest.total_bytes)}, in {seconds:.0f} s."
    )


def readable(number: float) -> str:
    """Return bytes for people.

    Example:
        >>> readable(999), readable(1_234_567)
        ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def schema_of(path: Path) -> Any:
    """Return the schema that a file says as JSON, or the one of a manifest."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.UsageError(f"--schema {path} is no JSON: {error}") from error
    return data.Schema.from_json(found.get("schema", found) if isinstance(found, dict) else found)


class _Watch(Watch):
    """Shows on standard error how far it is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._task = self.progress.add_task("looking at the examples", total=None)
        self._step = 0

    def show(self, examples: int, total: int | None, written: int) -> None:
        """Show the examples and bytes that are written, and the part of them where it is known."""
        said = f"{examples} examples, {readable(written)}"
        self.progress.update(self._task, description=said, total=total, completed=examples)
        step = 100 * examples // total // _STEP_PERCENT if total else written // _STEP_BYTES
        if not self.is_terminal and step > self._step:
            click.echo(f"{said} ({examples / total:.0%})" if total else said, err=True)
        self._step = max(self._step, step)
