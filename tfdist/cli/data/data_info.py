"""`tfdist data info`: parse, call `tfdist.data`, print the content of a directory."""

import json
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import screen
from tfdist.cli.data.data_options import follow_option, readable, schema_table, storage_option
from tfdist.errors import CorruptDataError
from tfdist.validation import counted

_BAR = 40
_MOST_CLASSES = 20


@click.command(
    "info",
    cls=Command,
    examples={
        "tfdist data info data/train": "a table on the terminal",
        "tfdist data info data/train --plot data.png": "a picture",
        "tfdist data info s3://bucket/train --json": "for programs",
    },
    page="data",
)
@click.argument("directory")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON document.")
@click.option("--plot", metavar="FILE", help="Draw sizes, shards and labels into a picture (needs Matplotlib).")
@storage_option
@follow_option
def command(directory: str, as_json: bool, plot: str | None, **options: Any) -> None:
    """Show the content of DIRECTORY: number and size of examples, shards, schema and labels.

    The balance is the size of the largest shard as a multiple of the mean: 1.00 is even.
    """
    try:
        found = data.info(directory, **options)
    except CorruptDataError as error:
        raise click.ClickException(str(error)) from error
    if plot is not None:
        found.plot(plot)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found)


def _show(found: Any) -> None:
    console = screen(200, highlight=False)
    shards = counted(len(found.shards), "shard")
    console.print(
        escape(
            f"{found.url}: {counted(found.examples, 'example')}, {readable(found.bytes)} in {shards} "
            f"(balance {found.balance:.2f}), indices {readable(found.index_bytes)}, layout {found.layout}, "
            f"revision {found.revision}"
        )
    )
    console.print(schema_table(found.schema, found.label))
    ranges = {f"{bar.start}" if bar.start == bar.stop else f"{bar.start} to {bar.stop}": bar for bar in found.sizes}
    _show_bars(console, "bytes of an example", {name: bar.examples for name, bar in ranges.items()})
    if found.labels:
        largest = dict(sorted(found.labels.items(), key=lambda item: -item[1])[:_MOST_CLASSES])
        chosen = {name: count for name, count in found.labels.items() if name in largest}
        _show_bars(console, f"label {found.label}", chosen)
        if len(found.labels) > len(chosen):
            console.print(f"  and {len(found.labels) - len(chosen)} classes with fewer; --json lists all")


def _show_bars(console: Console, title: str, counts: dict[str, int]) -> None:
    table = Table(escape(title), "examples", "", box=None)
    most = max(counts.values(), default=0) or 1
    for name, count in counts.items():
        table.add_row(escape(name), str(count), "█" * max(round(_BAR * count / most), int(count > 0)))
    console.print(table)
