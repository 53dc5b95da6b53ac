"""`tfdist bench pipeline`: a transformer in two stages over two processes, beside one process."""

import sys
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.pipeline import benchmark
from tfdist.cli.bench.output import leave, transformer_options, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line

_WIDTH_IN_FILES = 120


@click.command(
    "pipeline",
    cls=Command,
    examples={
        "tfdist bench pipeline": "8 blocks: minutes",
        "tfdist bench pipeline --microbatches 16": "a smaller bubble",
        "tfdist bench pipeline --blocks 2 --rounds 3": "a glance",
    },
    page="pipeline",
)
@transformer_options(benchmark.Setup())
@json_option
def command(json_path: str | None, **options: int) -> None:
    """A transformer in two stages over two processes, by three schedules, beside one process, in turns.

    Each process has one processor. The ideal step takes half of the time of one process, and the bubble of the
    schedule; what is printed is the ideal over the step that was measured. One process that computes micro-batch after
    micro-batch shows what smaller matrices cost; two that each train the whole model at once show what the machine
    leaves: memory is shared. Memory is what a process took at its peak, less what it had without a model.
    """
    setup = benchmark.Setup(**options)
    with unwinding(), Line() as line:

        def show(arm: str, number: int) -> None:
            line.update(f"{arm}, {turn(number, setup.rounds)}")

        report = benchmark.run(setup, on_round=show)
    leave(report, json_path, _print)


def _print(report: benchmark.Report) -> None:
    arms, schedules = (benchmark.ALONE, benchmark.BESIDE, benchmark.IN_PARTS, *benchmark.SCHEDULES), benchmark.SCHEDULES
    table = Table("", *arms, box=None)
    table.add_row("ms per step", *(f"{1000 * median(report.seconds[arm]):.0f}" for arm in arms))
    table.add_row("bubble of the schedule", "", "", "", *(f"{report.bubble(one):.1%}" for one in schedules))
    for title, part in (
        ("of the ideal", report.of_ideal),
        ("  of the same micro-batches", report.of_microbatches),
        ("  at the speed of two at once", report.of_machine),
    ):
        table.add_row(title, "", "", "", *(escape(str(part(one))) for one in schedules))
    table.add_row(
        "memory of each process, MB",
        *(", ".join(f"{one / 1e6:.0f}" for one in report.grown_bytes[arm]) for arm in arms),
    )
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    console.print(table)
    about, setup = report.machine, report.setup
    console.print(
        f"{setup.blocks} blocks of width {setup.width}, {setup.batch_size} texts of {setup.length} words in "
        f"{setup.microbatches} micro-batches; {setup.rounds} rounds of {setup.steps} steps; median [lower-upper "
        f"quartile]; {about['processor']}, {about['cores']} cores, TensorFlow {about['tensorflow']}, {about['time']}, "
        f"load {about['load average']}",
        highlight=False,
        markup=False,
    )
