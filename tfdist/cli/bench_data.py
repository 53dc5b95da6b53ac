"""`tfdist bench data`: writing, reading and resuming, beside TensorFlow's own tools and grain."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench import data_picture, picture
from tfdist.bench.data import Report, run
from tfdist.bench.data_rows import BATCH, Row, Setup
from tfdist.bench.ratio import quartiles
from tfdist.cli.bench_output import about, leave
from tfdist.cli.interrupts import unwinding
from tfdist.cli.progress import Line

_WIDTH_IN_FILES = 140
_QUICK = Setup(rows=8192, images=256, written_rows=500, written_images=50, rounds=1)


@click.command("data")
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
@click.option("--json", "json_path", metavar="FILE", help="Write the report as JSON; - for standard output.")
@click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Draw it, as a PNG.")
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

    Two kinds of made-up data: rows of 40 float32 numbers with a label, read in batches of 1024, and "pictures" of 20 to
    100 KB that cannot be compressed, with a label, in batches of 64. Everything is read from the page cache.

    \b
    tf.train.Example   the peer of writing: an Example for each, serialized, into tf.io.TFRecordWriter
    tf.data            the peer of reading: TFRecordDataset in the order of the files, whole batches parsed by
                       tf.io.parse_example on two threads, prefetched; it checks checksums and does not shuffle
    generic            tfdist, shuffled over all rows, of the same files as the peer, indexed in place; parsed
    fixed              tfdist, shuffled, as it writes rows of one length: nothing is parsed
    extent             tfdist, shuffled, as it writes pictures: the index has their places, nothing is parsed
    numpy, native      without and with the compiled reader; both check every checksum (verify="always")
    later epochs       checksums were checked when a record was read first (verify="first", which is the default)
    grain              array_record (groups of one) shuffled and parsed, where both are installed

    Resuming: seconds from making the dataset until its first batch, at the start and in the middle of an epoch, beside
    tf.data with `skip`, which reads what it leaves out.

    All sides take turns, one round is not counted, and ratios to the peer are of the same round: median [lower-upper
    quartile]. CPU time is that of the whole process, with all its threads; it depends less than the wall clock on what
    else the machine does. Wall clock profits from a second core.

    Runs on the CPU; the defaults need 1 GB in the folder for temporary files, and take about 3 minutes on 2 cores.
    """
    if plot is not None:
        picture.require_matplotlib()
    setup = Setup(rows=rows, images=images, written_rows=written_rows, written_images=written_images, rounds=rounds)
    with unwinding(), Line() as line:
        report = run(_QUICK if quick else setup, directory, on_turn=line.update)
    leave(report, json_path, _print)
    if plot is not None:
        data_picture.draw(report, plot)


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
