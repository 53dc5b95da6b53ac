"""`tfdist data verify|repair|info|index`: parse, call `tfdist.data`, show how far it is, print what was found."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from tfdist import data
from tfdist.cli.data import readable, schema_of, storage_option
from tfdist.cli.interrupts import unwinding
from tfdist.cli.progress import Watch
from tfdist.errors import CorruptDataError

_BAR = 40
_MOST_CLASSES = 20
_MOST_LINES = 50

_schema_option = click.option(
    "--schema",
    "schema_file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='What an example consists of, as JSON: {"x": {"dtype": "float32", "shape": [40]}, ...}, or a manifest.',
)


@click.command(
    short_help="Check every byte of DIRECTORY, and list what is corrupt.",
    epilog="Exit code: 0 when all is sound, 1 when something is corrupt, 2 when the request makes no sense.",
)
@click.argument("directory")
@click.option("--quick", is_flag=True, help="Look at checksums alone; do not take records apart.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")
@storage_option
def verify(directory: str, quick: bool, as_json: bool, storage_options: dict[str, Any] | None) -> None:
    """Look at every byte of DIRECTORY, and list everything that is corrupt with its file, byte and example.

    Compared are the sizes and checksums of the shards with the manifest, both checksums of each record, the indices
    with the shards, and what each record holds with the schema. Several corrupt records of one shard are all found:
    behind one, reading goes on where the next whole record begins.

    \b
    tfdist data verify data/train              all of it
    tfdist data verify --quick s3://bucket/train
    tfdist data repair data/train              takes out what was found
    """
    with unwinding(), _Watch("verifying") as watch:
        report = data.verify(directory, contents=not quick, progress=watch.show, storage_options=storage_options)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        _echo_some(list(report.lines()), last=1 if report.is_sound else 2)
    if not report.is_sound:
        sys.exit(1)


@click.command(epilog="Exit code: 0 when DIRECTORY is sound now, 1 when it cannot be repaired.")
@click.argument("directory")
@click.option(
    "--rebuild-manifest", is_flag=True, help="Make manifest.json from the shards, if it is missing or corrupt."
)
@click.option("--drop-missing", is_flag=True, help="Go on without shards that are not there; their examples are lost.")
@_schema_option
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON document.")
@storage_option
def repair(
    directory: str,
    rebuild_manifest: bool,
    drop_missing: bool,
    schema_file: Path | None,
    as_json: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Take out what is corrupt in DIRECTORY, and keep all that is whole.

    Shards with corrupt records are written anew without them, as data-00003.repair-2.tfrecord; indices that are missing
    or wrong are made from their shards; the manifest gets the next revision. What is sound is not touched, and nothing
    happens where all is. Killed at any moment, DIRECTORY is what it was or what it becomes. The lost examples are
    listed.

    \b
    tfdist data repair data/train
    tfdist data repair data/train --rebuild-manifest   the manifest is lost: the schema is told from the records
    tfdist data repair data/train --rebuild-manifest --schema schema.json
    """
    with unwinding(), _Watch("looking for what is corrupt") as watch:
        done = data.repair(
            directory,
            rebuild_manifest=rebuild_manifest,
            drop_missing=drop_missing,
            schema=schema_of(schema_file) if schema_file else None,
            progress=watch.show,
            storage_options=storage_options,
        )
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        _echo_some(list(done.lines()), last=1)


@click.command(short_help="Say what DIRECTORY holds: examples, sizes, shards, schema, labels.")
@click.argument("directory")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON document.")
@click.option("--plot", metavar="FILE", help="Draw sizes, shards and labels into a picture (needs Matplotlib).")
@storage_option
def info(directory: str, as_json: bool, plot: str | None, storage_options: dict[str, Any] | None) -> None:
    """Say what DIRECTORY holds: how many examples of which sizes, in which shards, of which schema, with which labels.

    The balance is the largest shard's bytes as a multiple of the mean: 1.00 is even.
    """
    try:
        found = data.info(directory, storage_options=storage_options)
    except CorruptDataError as error:
        raise click.ClickException(str(error)) from error
    if plot is not None:
        found.plot(plot)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found)


@click.command(short_help="Index the TFRecord files in DIRECTORY as they are.")
@click.argument("directory")
@click.option("--label", metavar="NAME", help='The feature that is learnt; "label" by default, if there is one.')
@_schema_option
@click.option("--overwrite", "exists", flag_value="overwrite", help="Replace the manifest and the indices there are.")
@storage_option
def index(
    directory: str,
    label: str | None,
    schema_file: Path | None,
    exists: str | None,
    storage_options: dict[str, Any] | None,
) -> None:
    """Take the TFRecord files in DIRECTORY as they are: write an index for each and a manifest, nothing else.

    The records must be tf.train.Example. What they consist of is told from all of them: a feature with one value in
    each is a single value, with as many in each an array, else a list of any length. Compressed files cannot be
    indexed; write them anew: tfdist data write 'old/*.tfrecord.gz' NEW

    \b
    tfdist data index old-data
    tfdist data info old-data
    """
    with unwinding(), Console(stderr=True).status("looking at the records"):
        manifest = data.index(
            directory,
            schema=schema_of(schema_file) if schema_file else None,
            label=label,
            exists=exists or "raise",
            storage_options=storage_options,
        )
    click.echo(
        f"{directory} has {manifest.examples} examples in {len(manifest.shards)} shards, layout {manifest.layout}: "
        f"{', '.join(f'{name} {feature.dtype}{list(feature.shape)}' for name, feature in manifest.schema.items())}"
    )


def _echo_some(lines: list[str], *, last: int) -> None:
    """Print lines; of very many the first, and the last ones, which sum up."""
    details, summary = lines[: len(lines) - last], lines[len(lines) - last :]
    for line in details[:_MOST_LINES]:
        click.echo(line)
    if len(details) > _MOST_LINES:
        click.echo(f"... and {len(details) - _MOST_LINES} more; --json lists all.")
    for line in summary:
        click.echo(line)


def _show(found: Any) -> None:
    # Without a terminal (a pipe, a log) there is no width to obey: no cell may be cut.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=200)
    shards = f"{len(found.shards)} shard{'s' * (len(found.shards) != 1)}"
    console.print(
        escape(
            f"{found.url}: {found.examples} examples, {readable(found.bytes)} in {shards} "
            f"(balance {found.balance:.2f}), indices {readable(found.index_bytes)}, layout {found.layout}, "
            f"revision {found.revision}"
        )
    )
    table = Table("feature", "dtype", "shape", "stored as", "", box=None)
    for name, feature in found.schema.items():
        notes = [
            note for note, holds in (("label", name == found.label), ("picture", feature.get("is_image"))) if holds
        ]
        shape = str(tuple("any" if dim is None else dim for dim in feature["shape"])).replace("'", "")
        table.add_row(escape(name), feature["dtype"], shape, feature["encoding"], ", ".join(notes))
    console.print(table)
    _show_bars(console, "bytes of an example", {_range(bar): bar.examples for bar in found.sizes})
    if found.labels:
        largest = dict(sorted(found.labels.items(), key=lambda item: -item[1])[:_MOST_CLASSES])
        chosen = {name: count for name, count in found.labels.items() if name in largest}
        _show_bars(console, f"label {found.label}", chosen)
        if len(found.labels) > len(chosen):
            console.print(f"  and {len(found.labels) - len(chosen)} classes with fewer; --json lists all")


def _range(bar: Any) -> str:
    return f"{bar.start}" if bar.start == bar.stop else f"{bar.start} to {bar.stop}"


def _show_bars(console: Console, title: str, counts: dict[str, int]) -> None:
    table = Table(escape(title), "examples", "", box=None)
    most = max(counts.values(), default=0) or 1
    for name, count in counts.items():
        table.add_row(escape(name), str(count), "█" * max(round(_BAR * count / most), int(count > 0)))
    console.print(table)


class _Watch(Watch):
    """Shows on standard error how many bytes were read: a bar, on a terminal alone."""

    def __init__(self, what: str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self.progress.add_task(what, total=None)

    def show(self, read: int, total: int) -> None:
        """Show how many bytes of how many are read; called from several threads, which rich allows."""
        self.progress.update(self._task, total=total, completed=read)
