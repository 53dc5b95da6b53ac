"""`tfdist bench monitor`: what recording adds to a step."""

import sys
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.monitor import benchmark
from tfdist.cli.bench.output import MODELS, about, leave, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.ratio import Quartiles, quartiles

_WIDTH_IN_FILES = 120
_MORE = {"observers": "the host", "stamps": "the graph", "everything": "the norm"}


@click.command(
    "monitor",
    cls=Command,
    examples={
        "tfdist bench monitor": "a convolutional network: minutes",
        "tfdist bench monitor --model perceptron --steps 5 --rounds 40": "25 M parameters: the norm weighs",
        "tfdist bench monitor --model small --steps 100": "steps of a few milliseconds",
    },
    page="monitoring",
)
@click.option("--strategy", type=click.Choice(benchmark.STRATEGIES), default="multi-worker", show_default=True)
@click.option("--model", type=click.Choice(MODELS), default="convolutional", show_default=True, help="What is trained.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Of all workers.")
@click.option("--warm-up-steps", type=click.IntRange(1), default=20, show_default=True, help="Steps to warm up.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=100, show_default=True, help="Measurements each.")
@json_option
def command(json_path: str | None, strategy: str, model: str, **options: int) -> None:
    """What `tfdist run --monitor` adds to a step of `fit`, in the same processes, in turns.

    \b
    nothing       not recorded
    observers     what the host notes of a step, and writes twice a second
    stamps        and the times that the graph takes
    everything    and the norm of the gradient, in one step of twenty: what --monitor does

    Each arm is compared with the step of the same round of which nothing was recorded, in time and in processor time,
    of which other programs take nothing. The interval is that of the median, with a probability of 95 %: where it has 0
    in it, nothing was seen.

    The last table has no noise of a step in it: for how long the thread that steps did what the recorder does, and how
    much longer a function takes by the stamps of a step and nothing else of it, where nothing hides them.
    """
    setup = benchmark.Setup(strategy=strategy, model=model, **options)
    with unwinding(), Line() as line:

        def show(arm: str, number: int) -> None:
            line.update(f"{arm}, {turn(number, setup.rounds)}")

        report = benchmark.run(setup, on_round=show)
    leave(report, json_path, _print)


def _print(report: benchmark.Report) -> None:
    result = Table("recorded", "ms", "added, %", "interval", "processor ms", "added, %", "interval", box=None)
    parts = Table("", "processor µs of a step", "of that, writing rows", box=None)
    most = Table("added at most", "µs of a step", "of a step, %", box=None)
    more = report.added_seconds()
    for arm in benchmark.ARMS:
        cells = []
        for of, seconds in (("seconds", report.seconds), ("processor", report.processor)):
            cells.append(f"{1e3 * median(seconds[arm]):.2f}")
            if arm != "nothing":
                low, high = benchmark.interval(report.added(arm, of))
                cells.append(escape(_shown(quartiles(report.added(arm, of)), 100, 2)))
                cells.append(f"{100 * low:.2f} to {100 * high:.2f}")
            else:
                cells += ["", ""]
        result.add_row(arm, *cells)
        if arm in more:
            writing = f"{1e6 * median(report.flushing[arm]):.0f}"
            parts.add_row(f"{_MORE[arm]} adds", escape(_shown(more[arm], 1e6, 0)), writing)
            microseconds, share = quartiles(report.inside[arm]), quartiles(report.most(arm))
            most.add_row(arm, escape(_shown(microseconds, 1e6, 0)), escape(_shown(share, 100, 3)))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    console.print(result)
    console.print(parts)
    console.print(most)
    setup = report.setup
    console.print(
        f"Of a step: {setup.strategy}, {setup.workers} workers, {setup.model}, global batch {setup.batch_size}; "
        f"{setup.rounds} rounds of {setup.steps} steps; median [lower-upper quartile]; {about(report.machine)}",
        highlight=False,
        markup=False,
    )


def _shown(found: Quartiles, factor: float, digits: int) -> str:
    middle, lower, upper = (f"{factor * one:.{digits}f}" for one in (found.median, found.lower, found.upper))
    return f"{middle} [{lower} to {upper}]"
