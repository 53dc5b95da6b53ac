"""`tfdist bench model-parallel`: a transformer over two processes beside one, and beside DTensor."""

import sys
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.model_parallel import benchmark
from tfdist.cli.bench.output import leave, transformer_options, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line

_WIDTH_IN_FILES = 120


@click.command(
    "model-parallel",
    cls=Command,
    examples={
        "tfdist bench model-parallel": "8 blocks: minutes",
        "tfdist bench model-parallel --width 512 --batch-size 8": "wider",
        "tfdist bench model-parallel --blocks 2 --rounds 3": "a glance",
    },
    page="model-parallel",
)
@transformer_options(benchmark.Setup())
@json_option
def command(json_path: str | None, **options: int) -> None:
    """A transformer with its weights in parts over two processes, beside one process, in turns.

    Each process has one processor. Efficiency is the time of one process over twice that of two; its limit is what it
    would be if nothing but the sums of activations came on top of half of the computing, at the speed at which two
    processes add them up in the same round. DTensor has no Keras layers: it trains the blocks without attention, beside
    the same network under model-parallel. Speeds over DTensor above 1: tfdist is faster.
    """
    setup = benchmark.Setup(**options)
    with unwinding(), Line() as line:

        def show(arm: str, number: int) -> None:
            line.update(f"{arm}, {turn(number, setup.rounds)}")

        report = benchmark.run(setup, on_round=show)
    leave(report, json_path, _print)


def _print(report: benchmark.Report) -> None:
    table, kinds = Table("", "transformer", "without attention", box=None), ("", ", no attention")
    seconds = report.seconds

    def milliseconds(arm: str) -> str:
        return f"{1000 * median(seconds[arm]):.1f}"

    for name in ("one process", "two processes"):
        table.add_row(f"{name}, ms per step", *(milliseconds(f"{name}{kind}") for kind in kinds))
    table.add_row("DTensor, two processes, ms per step", "-", milliseconds("DTensor, no attention"))
    table.add_row("parallel efficiency", *(escape(str(report.efficiency(kind))) for kind in kinds))
    table.add_row("  its limit by the sums", *(escape(str(report.limit(kind))) for kind in kinds))
    table.add_row("speed over DTensor", "-", escape(str(report.over_dtensor)))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    console.print(table)
    about, setup = report.machine, report.setup
    counts = [benchmark.sums(setup.blocks, attention=attention) for attention in (True, False)]
    console.print(
        f"{setup.blocks} blocks of width {setup.width}, {setup.batch_size} texts of {setup.length} words; "
        f"{counts[0]} and {counts[1]} sums of {4 * setup.numbers / 1e6:.2f} MB in a step, "
        f"{1000 * median(report.sum_seconds):.2f} ms each; {setup.rounds} rounds of {setup.steps} steps; median "
        f"[lower-upper quartile]; {about['processor']}, {about['cores']} cores, TensorFlow {about['tensorflow']}, "
        f"{about['time']}, load {about['load average']}",
        highlight=False,
        markup=False,
    )
