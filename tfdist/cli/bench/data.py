"""`tfdist bench data`: writing, reading and resuming, beside TensorFlow's own tools and grain."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.data import picture
from tfdist.bench.data.benchmark import Report, run
from tfdist.bench.data.rows import BATCH, Row, Setup
from tfdist.cli.bench.output import about, leave
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option, plot_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.pictures import require_matplotlib
from tfdist.measurement.ratio import quartiles

_WIDTH_IN_FILES = 140
_QUICK = Setup(rows=8192, images=256, written_rows=500, written_images=50, rounds=1)


@click.command(
    "data",
    cls=Command,
    examples={
        "tfdist bench data --quick": "whether it runs, not how fast it is",
        "tfdist bench data --plot data.png": "as docs/benchmarks.md has it",
        "tfdist bench data --json - --rounds 9": "for programs",
    },
    page="benchmarks",
)
@click.option("--rows", type=click.IntRange(4096), default=500_000, show_default=True, help="Rows that are read.")
@click.option("--images", type=click.IntRange(256), default=4000, show_default=True, help="Pictures that are read.")
@click.option("--written-rows", type=click.IntRange(4), default=200_000, show_default=True, help="Rows per write.")
@click.option("--written-images", type=click.IntRange(4), default=1000, show_default=True, help="Pictures per write.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measurements of each side.")
@click.option("--quick", is_flag=True, help="Few examples and one round: whether it runs, not how fast it is.")
@click.option(
    "--directory",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Make the data there and keep them; what is there already is used. Default: a temporary folder.",
)
@json_option
@plot_option
def command(
    rows: int,
    images: int,
    written_rows: int,
    written_images: int,
    rounds: int,
    quick: bool,
    directory: Path | None,
    json_path: str | None,
    plot: Path | None,
) -> None:
    """TFRecord data: writing, reading and resuming.

    \b
    tf.train.Example   the peer of writing: an Example for each, serialized, into tf.io.TFRecordWriter
    tf.data            the peer of reading: TFRecordDataset in the order of the files, prefetched;
                       tf.io.parse_example of whole batches on two threads; checksums, no shuffling
    generic            tfdist, shuffled over all rows, of the peer's files, indexed in place; parsed
    fixed              tfdist, shuffled, as it writes rows of one length: nothing is parsed
    extent             tfdist, shuffled, as it writes pictures: nothing is parsed
    numpy, native      without and with the compiled reader; verify="always": every checksum
    later epochs       checked when a record was read first: verify="first", the default
    grain              array_record (groups of one) shuffled and parsed, where both are there

    Resuming is the time from making the dataset until its first batch, beside tf.data with `skip`. All sides take
    turns; ratios to the peer are of the same round: median [lower-upper quartile]. It needs 1 GB in the folder for
    temporary files, and takes about 3 minutes on 2 cores.
    """
    if plot is not None:
        require_matplotlib()
    setup = Setup(rows=rows, images=images, written_rows=written_rows, written_images=written_images, rounds=rounds)
    with unwinding(), Line() as line:
        report = run(_QUICK if quick else setup, directory, on_turn=line.update)
    leave(report, json_path, _print)
    if plot is not None:
        picture.draw(report, plot)


def _print(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    for subject in ("write", "read"):
        table = Table(
            subject, "", "us per example", "CPU us per example", "speed", "CPU", "asked for", box=None, padding=(0, 1)
        )
        for row in report.rows:
            if row.subject == subject:
                table.add_row(row.kind, row.way, *_each(row, 1e6), *_ratios(report, row, "speed", "cpu"))
        console.print(table)
        console.print()
    table = Table("first batch", "ms", "CPU ms", "time", "CPU", "asked for", box=None, padding=(0, 1))
    for row in report.rows:
        if row.subject == "resume":
            table.add_row(row.way, *_each(row, 1e3), *_ratios(report, row, "time", "cpu"))
    console.print(table)
    setup = report.setup
    told = [
        f"Where reading stands: {report.state_bytes['tfdist']:,} bytes (asked for: less than 1024); a checkpoint of "
        f"tf.data's iterator with {max(1, setup.images // 10):,} pictures in its shuffle buffer: "
        f"{report.state_bytes['tf.data']:,} bytes.",
        f"{setup.rows:,} rows in batches of {BATCH['rows']}, {setup.images:,} pictures in batches of "
        f"{BATCH['images']}; "
        f"{setup.written_rows:,} rows and {setup.written_images:,} pictures written by one process; {setup.rounds} "
        "rounds; median [lower-upper quartile]; speed, time and CPU are ratios to the first line of their kind, skip's "
        "to tf.data's fresh start.",
        *(f"{name} left out: {why}." for name, why in report.left_out.items()),
        about(report.machine),
    ]
    for sentence in told:
        console.print(sentence, highlight=False, markup=False)


def _each(row: Row, scale: float) -> list[str]:
    shown = []
    for values in (row.seconds, row.cpu_seconds):
        median = scale * quartiles([value / row.examples for value in values]).median
        shown.append(f"{median:.2f}" if median < 100 else f"{median:.0f}")
    return shown


def _ratios(report: Report, row: Row, *names: str) -> list[str]:
    if row.way == row.peer or row.way == "tf.data, fresh start":
        return ["-"] * len(names) + [""]
    against, target = row.against(report.peer(row)), row.target
    asked = "" if target is None else f"{target}: {'met' if target.is_met(against[target.of]) else 'not met'}"
    return [*(escape(str(against[name])) for name in names), asked]
