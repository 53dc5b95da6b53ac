"""`tfdist bench plan`: predicted steps beside measured ones."""

import sys
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.plan import benchmark
from tfdist.cli.bench.output import leave, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line

_WIDTH_IN_FILES = 120


@click.command(
    "plan",
    cls=Command,
    examples={
        "tfdist bench plan": "four models, three plans: half an hour",
        "tfdist bench plan --model dense --model transformer": "two of them",
        "tfdist bench plan --model dense --rounds 1 --seconds 0.2": "a glance",
    },
    page="parallel-plan",
)
@click.option("--model", "models", multiple=True, type=click.Choice(benchmark.MODELS), help="Only this one.")
@click.option("--microbatches", type=click.IntRange(1), default=4, show_default=True, help="Of the pipeline.")
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Steps per measurement, at least.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    metavar="X",
    help="Seconds per measurement, at least, and as long before it; three times as long for layers.",
)
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True, help="Measurements each.")
@json_option
def command(json_path: str | None, models: tuple[str, ...], **options: Any) -> None:
    """What `tfdist parallel plan` predicts of steps, beside steps of `fit` on one and two processes.

    Each process has one processor. The layers are measured in each round, in one process alone, and for plans of two in
    two at once. Predicted over measured above 1: the step was shorter. The plan with the shortest
    predicted step is the one that is chosen; its measured step over that of the best plan is what the choice costs.
    """
    setup = benchmark.Setup(models=models or benchmark.MODELS, **options)
    with unwinding(), Line() as line:

        def show(what: str, number: int) -> None:
            line.update(f"{what}, {turn(number, setup.rounds)}")

        report = benchmark.run(setup, on_round=show)
    leave(report, json_path, _print)


def _print(report: benchmark.Report) -> None:
    table = Table("model", "plan", "predicted, ms", "measured, ms", "predicted / measured", "chosen / best", box=None)
    for model, rows in report.rows.items():
        for plan, row in rows.items():
            times = (f"{1000 * one:.1f}" for one in map(median, (row.predicted, row.measured)))
            regret = escape(str(report.regret(model))) if plan == report.chosen(model) else ""
            table.add_row(model, plan, *times, escape(str(row.ratio)), regret)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    console.print(table)
    about, setup, link = report.machine, report.setup, report.link
    console.print(
        f"{setup.microbatches} micro-batches; a line of {8e-9 * link.bytes_per_second:.1f} Gbit/s and "
        f"{1e3 * link.latency_seconds:.2f} ms; {setup.rounds} rounds of {setup.steps} steps or more; median "
        f"[lower-upper quartile]; {about['processor']}, {about['cores']} cores, TensorFlow {about['tensorflow']}, "
        f"{about['time']}, load {about['load average']}",
        highlight=False,
        markup=False,
    )
