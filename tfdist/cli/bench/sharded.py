"""`tfdist bench sharded`: memory, bytes and step time of sharded data parallelism beside plain."""

import sys
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.sharded import benchmark
from tfdist.bench.workers.links import RATES, Link
from tfdist.cli.bench.output import leave, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line

_WIDTH_IN_FILES = 120


@click.command(
    "sharded",
    cls=Command,
    examples={
        "tfdist bench sharded": "two workers, 48 M weights: minutes",
        "tfdist bench sharded --workers 4": "four",
        "tfdist bench sharded --link 10gbit": "bytes on the wire, too; as root",
    },
    page="sharded-data-parallel",
)
@click.option("--workers", type=click.IntRange(2), default=2, show_default=True, help="Processes.")
@click.option("--units", type=click.IntRange(1), default=1000, show_default=True, help="Of each layer.")
@click.option("--layers", type=click.IntRange(1), default=48, show_default=True, help="Number of layers.")
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Of all workers.")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True, help="Steps per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measurements each.")
@click.option("--link", type=click.Choice(tuple(RATES)), help="Between workers in network namespaces, for the bytes.")
@json_option
def command(
    workers: int,
    units: int,
    layers: int,
    batch_size: int,
    steps: int,
    rounds: int,
    link: str | None,
    json_path: str | None,
) -> None:
    """Memory, bytes and step time of sharded data parallelism, beside plain.

    A wide perceptron with Adam and a global norm, under multi-worker and under the stages of sharded-data-parallel, in
    turns. Memory is the largest of a process above that of one with a narrow network, over the formula 4 N (1 + 3 / p)
    bytes of N weights and p workers; plain: 16 N; stage 3: 16 N / p, and two layers. Below it stands what it is
    over the formula and two layers more, which are whole while they travel, however many layers there are. Bytes are
    over those of an all_reduce, 8 N (p - 1) / p; stage 3: half as many again, less those of two layers. Times are
    ratios to plain data parallelism: below 1 sharding is faster.
    """
    setup = benchmark.Setup(
        workers=workers,
        units=units,
        layers=layers,
        batch_size=batch_size,
        steps=steps,
        rounds=rounds,
        link=None if link is None else Link(rate=link),
    )
    with unwinding(), Line() as line:

        def show(arm: str, number: int) -> None:
            line.update(f"{arm}, {turn(number, rounds)}")

        report = benchmark.run(setup, on_round=show)
    leave(report, json_path, _print)


def _print(report: benchmark.Report) -> None:
    table = Table("", *benchmark.ARMS, box=None)
    arms, mega = list(benchmark.ARMS), 1e6
    table.add_row("ms per step", *(f"{1000 * median(report.seconds[arm]):.1f}" for arm in arms))
    table.add_row("time of a step, over plain", *(escape(str(report.time(arm))) for arm in arms))
    table.add_row("slots, MB", *(f"{max(report.slots_bytes[arm]) / mega:.1f}" for arm in arms))
    memory = {arm: max(report.peak_bytes[arm]) for arm in arms}
    table.add_row("memory, MB", *(f"{memory[arm] / mega:.1f}" for arm in arms))
    table.add_row("  over the formula", *(f"{memory[arm] / report.expected_bytes(arm):.3f}" for arm in arms))
    whole = {arm: report.expected_bytes(arm) + report.under_way_bytes(arm) for arm in arms}
    table.add_row("  and what is under way", *(f"{memory[arm] / whole[arm]:.3f}" for arm in arms))
    if report.sent_bytes:
        sent = {arm: max(report.sent_bytes[arm]) for arm in arms}
        table.add_row("sent in a step, MB", *(f"{sent[arm] / mega:.1f}" for arm in arms))
        table.add_row("  over the formula", *(f"{sent[arm] / report.expected_sent_bytes(arm):.3f}" for arm in arms))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    console.print(table)
    about, setup = report.machine, report.setup
    console.print(
        f"{report.parameters / mega:.1f} M weights, {setup.workers} workers, global batch {setup.batch_size}; "
        f"{setup.rounds} rounds of {setup.steps} steps; median [lower-upper quartile]; {about['processor']}, "
        f"{about['cores']} cores, TensorFlow {about['tensorflow']}, {about['time']}, load {about['load average']}",
        highlight=False,
        markup=False,
    )
