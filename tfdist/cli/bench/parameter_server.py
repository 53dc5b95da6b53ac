"""`tfdist bench parameter-server`: what a slow worker costs, and a large table in parts."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.parameter_server import lookups, picture, stragglers
from tfdist.bench.parameter_server.benchmark import Report, run
from tfdist.cli.bench.output import about, leave
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option, plot_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.pictures import require_matplotlib
from tfdist.measurement.ratio import Quartiles
from tfdist.validation import parse_integer

_NAMES = {"lookups": "lookups, predict", "sgd": "training, SGD", "adagrad": "training, Adagrad"}
_WIDTH_IN_FILES = 120


@click.command(
    "parameter-server",
    cls=Command,
    examples={
        "tfdist bench parameter-server --plot servers.png": "about 8 minutes on 2 cores",
        "tfdist bench parameter-server --workers 1,2 --no-lookups": "the modes alone",
        "tfdist bench parameter-server --rows 1000000 --dim 64": "another table",
    },
    page="benchmarks",
)
@click.option(
    "--workers", metavar="N,N", default="1,2,3", show_default=True, help="Numbers of workers, each a measurement."
)
@click.option(
    "--slow-factor",
    type=click.FloatRange(1),
    default=3.0,
    show_default=True,
    help="How many times slower one of several workers is.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements of everything.")
@click.option(
    "--steps", type=click.IntRange(1), default=15, show_default=True, help="Per worker, in the mean, and measurement."
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=1024, show_default=True, help="Examples in a worker's step."
)
@click.option("--rows", type=click.IntRange(2), default=10_000_000, show_default=True, help="Rows of the table.")
@click.option("--dim", type=click.IntRange(1), default=16, show_default=True, help="Float32 numbers in a row.")
@click.option("--no-lookups", is_flag=True, help="Leave the table out.")
@json_option
@plot_option
def command(
    workers: str,
    slow_factor: float,
    rounds: int,
    steps: int,
    batch_size: int,
    rows: int,
    dim: int,
    no_lookups: bool,
    json_path: str | None,
    plot: Path | None,
) -> None:
    """Parameter servers: a slow worker, and a large table.

    Stragglers: plain Keras `fit` of a small convolutional model, with two parameter servers and one slow worker among
    several, in three modes that take turns over the same workers:

    \b
    synchronous    max_staleness=0: every batch is cut for all workers, and waits for the slow one
    bounded        max_staleness=workers + 1: a batch for each worker; what is too far ahead waits
    asynchronous   max_staleness=None: a batch for each worker, and nobody waits

    The slow worker is stopped and let go in turns of 30 ms. A worker's step has --batch-size examples in every mode, so
    the synchronous mode makes fewer and larger updates. "Against synchronous" compares examples per second of the same
    round. Whether stale gradients train as well is not measured here.

    Lookups: a table of --rows by --dim in two parts, two workers, batches of 8192 ids, uniform or by a power law. Rows
    per second of `predict`, and of `fit` with SGD and Adagrad; the memory of the servers, 4 GB with the defaults.
    """
    if plot is not None:
        require_matplotlib()
    counts = tuple(parse_integer("--workers", each, minimum=1, hint="Such as 1,2,3.") for each in workers.split(","))
    setup = stragglers.Setup(workers=counts, slow_factor=slow_factor, rounds=rounds, steps=steps, batch_size=batch_size)
    table = None if no_lookups else lookups.Setup(rows=rows, dim=dim, rounds=rounds, steps=steps)
    with unwinding(), Line() as line:
        report = run(setup, table, on_turn=line.update)
    leave(report, json_path, _print)
    if plot is not None:
        picture.draw(report, plot)


def _print(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
    console.print(_crowds(report))
    slowed = [crowd for crowd in report.crowds if crowd.slow_down is not None]
    told = [
        f"with {c.workers} workers one was {c.slow_down:.2f} times slower by itself "
        f"({report.setup.slow_factor:g} were asked for)"
        for c in slowed
    ]
    _say(
        console,
        f"{report.setup.batch_size} examples in a worker's step, {stragglers.SERVERS} servers; {report.setup.rounds} "
        f"rounds of {report.setup.steps} steps per worker; median [lower-upper quartile]; "
        + ("; ".join(told) or "no worker was slow")
        + ".",
    )
    if report.table is not None:
        _print_table(console, report.table)
    _say(
        console,
        about(report.machine),
    )


def _crowds(report: Report) -> Table:
    result = Table(
        "workers", "mode", "examples per second", "updates per second", "against synchronous", "staleness", box=None
    )
    for crowd in report.crowds:
        for mode in crowd.seconds:
            stale = crowd.distribution(mode)
            result.add_row(
                str(crowd.workers),
                mode,
                shown(crowd.examples_per_second(mode)),
                shown(crowd.steps_per_second(mode)),
                "-" if mode == "synchronous" else escape(str(crowd.speed(mode))),
                f"median {stale.quantile(0.5)}, largest {stale.largest}",
            )
    return result


def _print_table(console: Console, found: lookups.Result) -> None:
    setup = found.setup
    console.print()
    rates = Table("table", "ids", "rows per second", "batches per second", box=None)
    for arm in found.arms:
        rates.add_row(_NAMES[arm.work], arm.draw, shown(arm.rows_per_second), shown(arm.steps_per_second))
    console.print(rates)
    _say(
        console,
        f"{setup.rows:,} rows of {setup.dim} float32, {setup.bytes / 1e6:,.1f} MB in {setup.servers} parts, made in "
        f"{found.create_seconds:.1f} s; {setup.workers} workers, batches of {setup.batch_size} ids.",
    )
    console.print()
    memory = Table("memory of a server's process, MB", *(f"server {s}" for s in range(setup.servers)), box=None)
    for moment, servers in found.memory.items():
        memory.add_row(f"{moment}: variables placed", *(_megabytes(server.placed) for server in servers))
        memory.add_row(f"{moment}: resident", *(_megabytes(server.resident) for server in servers))
    memory.add_row("the most it ever had", *(_megabytes(server.most) for server in found.memory["after training"]))
    console.print(memory)
    _say(
        console, "Variables placed are those of the models; Adagrad keeps as much again for each, resident in the end."
    )
    console.print()


def shown(rate: Quartiles) -> str:
    """Return a rate as text for a table, with as many digits as it bears.

    Example:
        >>> shown(Quartiles(median=12345.6, lower=1.0, upper=20000.0))
        '12,346 [1-20,000]'
    """
    digits = 0 if rate.median >= 100 else 1
    return escape(f"{rate.median:,.{digits}f} [{rate.lower:,.{digits}f}-{rate.upper:,.{digits}f}]")


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f}"


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False)
