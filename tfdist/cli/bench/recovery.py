"""`tfdist bench recovery`: how long after the death of a worker all step again, beside Horovod elastic."""

import sys

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.recovery.benchmark import PEER, STRATEGIES, Report, Setup, Way, run
from tfdist.cli.bench.output import about, leave
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.ratio import quartiles

_WIDTH_IN_FILES = 160
_DEFAULT = Setup()


@click.command(
    "recovery",
    cls=Command,
    examples={
        "tfdist bench recovery": "about 20 minutes on 2 cores",
        "tfdist bench recovery --strategy ring --rounds 1": "one strategy, beside Horovod elastic",
        "tfdist bench recovery --json recovery.json": "for programs",
    },
    page="benchmarks",
)
@click.option("--strategy", type=click.Choice(STRATEGIES), multiple=True, help="Default: all.")
@click.option(
    "--megabytes",
    type=click.FloatRange(0.1),
    default=_DEFAULT.megabytes,
    show_default=True,
    help="Size of weights and slots.",
)
@click.option("--kills", type=click.IntRange(1), default=_DEFAULT.kills, show_default=True, help="In a job of tfdist.")
@click.option(
    "--first", type=click.IntRange(1), default=_DEFAULT.first, show_default=True, help="Step of the first kill."
)
@click.option(
    "--every", type=click.IntRange(1), default=_DEFAULT.every, show_default=True, help="Steps from start to next kill."
)
@click.option("--batch-size", type=click.IntRange(2), default=_DEFAULT.batch_size, show_default=True, help="Of a step.")
@click.option("--rounds", type=click.IntRange(1), default=_DEFAULT.rounds, show_default=True, help="Jobs of each way.")
@json_option
def command(
    strategy: tuple[str, ...],
    megabytes: float,
    kills: int,
    first: int,
    every: int,
    batch_size: int,
    rounds: int,
    json_path: str | None,
) -> None:
    """Recovery: a worker is killed, and how long it takes until all step again with their state.

    Two workers train a model of eight dense layers and Adam; one of them gets SIGKILL before a scripted step. Jobs of
    these ways take turns:

    \b
    horovod elastic   the peer: horovod.tensorflow.elastic, a hand-written loop, committed after every
                      step; the worker that is left goes on ALONE, so there is one kill in a job
    multi-worker,     `tfdist run --max-restarts`, `fit` and tfdist.callbacks.BackupAndRestore: all
    ring              workers are started again, and as many as before go on
    ... --standby     a second set of workers, which has run up to its first step, takes over

    "Noticed" is from the kill until it is seen: by the agent of `tfdist run`, or by Horovod's worker that is left.
    "Step again" is from the kill until all workers that go on have ended a step, from the state as it was. "Peer" is
    how many times as long Horovod takes, in the same round: below 1 Horovod is faster. "Repeated" are steps that were
    done before and are done once more, median and most. "ms per step" is before the first kill, with all that is done
    to go on later. Quartiles are over kills, those of ratios over rounds.

    Steps before --first give the process that restarts are forked from the time to import TensorFlow, those of --every
    a second set of workers the time to get ready. If Horovod elastic cannot run, the table says why.
    """
    setup = Setup(
        strategies=strategy or STRATEGIES,
        megabytes=megabytes,
        kills=kills,
        first=first,
        every=every,
        batch_size=batch_size,
        rounds=rounds,
    )
    with unwinding(), Line() as line:
        report = run(setup, on_turn=line.update)
    leave(report, json_path, _print)


def _print(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    columns = ("kills", "noticed, ms", "step again, s", "at most", "peer", "repeated", "workers after", "ms per step")
    table = Table("", *columns, box=None, padding=(0, 1))
    for way in report.ways:
        if not way.why_not:
            table.add_row(way.name, *(escape(cell) for cell in _cells(report, way)))
    console.print(table)
    told = [f"{way.name} was not measured: {way.why_not}" for way in report.ways if way.why_not]
    job = next((job for way in report.ways for job in way.jobs), None)
    setup = report.setup
    if job is not None:
        told.append(
            f"{job.variables} variables, {job.bytes:,} bytes; 2 workers, {setup.batch_size} examples in a step; killed "
            f"at step {setup.first}, and {setup.every} steps after each recovery; {setup.rounds} rounds; median "
            "[lower-upper quartile]."
        )
    told.append(about(report.machine))
    for sentence in told:
        console.print(sentence, highlight=False, markup=False)


def _cells(report: Report, way: Way) -> list[str]:
    noticed, repeated = quartiles([1000 * seconds for seconds in way.noticed]), quartiles(way.repeated)
    step = quartiles([1000 * job.step_seconds for job in way.jobs])
    return [
        str(len(way.recovered)),
        f"{noticed.median:.0f} [{noticed.lower:.0f}-{noticed.upper:.0f}]",
        str(quartiles(way.recovered)),
        f"{max(way.recovered):.2f}",
        "-" if way.name == PEER else str(report.times_of_peer(way) or "-"),
        f"{repeated.median:g}, {max(way.repeated)}",
        str(way.jobs[-1].workers),
        f"{step.median:.1f} [{step.lower:.1f}-{step.upper:.1f}]",
    ]
