"""`tfdist bench checkpoint`: what saving and going on cost, beside Keras' BackupAndRestore."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.checkpoint.benchmark import Report, run
from tfdist.bench.checkpoint.ways import NONE, PEER, Setup, Way
from tfdist.cli.bench.output import about, leave
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.ratio import Quartiles, quartiles

_WIDTH_IN_FILES = 160
_DEFAULT = Setup()


@click.command(
    "checkpoint",
    cls=Command,
    examples={
        "tfdist bench checkpoint": "about 10 minutes on 2 cores",
        "tfdist bench checkpoint --megabytes 10 --rounds 2": "seconds",
        "tfdist bench checkpoint --directory /mnt/shared": "another disk",
    },
    page="benchmarks",
)
@click.option(
    "--megabytes",
    type=click.FloatRange(0.1),
    multiple=True,
    default=_DEFAULT.megabytes,
    show_default=True,
    help="Size of weights and slots; may be given several times.",
)
@click.option("--saves", type=click.IntRange(1), default=_DEFAULT.saves, show_default=True, help="In one fit.")
@click.option("--steps", type=click.IntRange(1), default=_DEFAULT.steps, show_default=True, help="From save to save.")
@click.option("--batch-size", type=click.IntRange(1), default=_DEFAULT.batch_size, show_default=True, help="Of a step.")
@click.option("--rounds", type=click.IntRange(1), default=_DEFAULT.rounds, show_default=True, help="Of each way.")
@click.option(
    "--directory",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where backups are written and removed again. Default: the folder of temporary files.",
)
@json_option
def command(
    megabytes: tuple[float, ...],
    saves: int,
    steps: int,
    batch_size: int,
    rounds: int,
    directory: Path | None,
    json_path: str | None,
) -> None:
    """Checkpoints: how long training stops for them, their bytes, and how long going on takes.

    A model of eight dense layers and Adam is trained by `fit` in four ways that take turns:

    \b
    no saves        nothing is saved
    keras           the peer: keras.callbacks.BackupAndRestore, one file, no fsync or checksums
    tfdist, waits   tfdist.callbacks.BackupAndRestore(asynchronous=False), on the disk first
    tfdist          the same as it is: training goes on while a backup is written

    "Stops" is how long training stands still for a save: from the end of a step to the begin of the next, beyond what
    that takes without a save. "Keras stops" is how many times as long that is for the peer, in the same round. "Adds"
    is what one save adds to all of `fit`, what is written meanwhile, the wait for the last one and the removal of all
    at the end included: the whole call with saves minus the whole call without, in the same round, by the number of
    saves; on a machine that does other things it is mostly noise. "Restore" is the time from calling `fit` of a new
    model until its first step begins, minus that of one that has no backup. Each is the median [lower to upper
    quartile] over rounds.

    Runs on the CPU; the defaults write 20 GB, at most 0.5 GB at a time, and take about 10 minutes on 2 cores.
    """
    setup = Setup(megabytes=megabytes, saves=saves, steps=steps, batch_size=batch_size, rounds=rounds)
    with unwinding(), Line() as line:
        report = run(setup, directory, on_turn=line.update)
    leave(report, json_path, _print)


def _print(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    ratios = ("stops, ms per save", "keras stops", "adds, ms per save", "of training")
    table = Table("state", "", *ratios, "bytes", "restore, ms", box=None, padding=(0, 1))
    for way in report.ways:
        if way.name != NONE:
            table.add_row(f"{way.megabytes:g} MB", way.name, *(escape(cell) for cell in _cells(report, way)))
    console.print(table)
    setup = report.setup
    fits = ", ".join(f"{_without(report, size):.2f} s" for size in setup.megabytes)
    told = [
        f"{setup.saves} saves in a fit, {setup.steps} steps of {setup.batch_size} examples from one to the next; a fit "
        f"without saves took {fits}; {setup.rounds} rounds; median [lower-upper quartile].",
        about(report.machine),
    ]
    for sentence in told:
        console.print(sentence, highlight=False, markup=False)


def _cells(report: Report, way: Way) -> list[str]:
    return [
        _milliseconds(quartiles(way.stops)),
        "-" if way.name == PEER else str(report.times_of_peer(way)),
        _milliseconds(report.added(way)),
        "{:.1%} [{:.1%} to {:.1%}]".format(*_three(report.share(way))),
        f"{way.bytes:,}",
        _milliseconds(report.restore(way)),
    ]


def _milliseconds(found: Quartiles) -> str:
    return "{:.1f} [{:.1f} to {:.1f}]".format(*(1000 * value for value in _three(found)))


def _three(found: Quartiles) -> tuple[float, float, float]:
    return found.median, found.lower, found.upper


def _without(report: Report, megabytes: float) -> float:
    return quartiles(report.way(megabytes, NONE).seconds).median
