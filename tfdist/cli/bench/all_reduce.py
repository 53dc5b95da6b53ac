"""`tfdist bench all-reduce`: time and bandwidth of an all-reduce, engine beside engine."""

from pathlib import Path

import click

from tfdist.bench.all_reduce import benchmark as all_reduce_bench
from tfdist.bench.all_reduce import message, picture, table
from tfdist.bench.workers.links import RATES, Link
from tfdist.cli.bench.output import MODELS, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option, plot_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.pictures import require_matplotlib
from tfdist.measurement.sizes import as_bytes
from tfdist.native.engine import ALGORITHMS


@click.command(
    "all-reduce",
    cls=Command,
    examples={
        "tfdist bench all-reduce --plot all-reduce.png": "every engine: minutes",
        "tfdist bench all-reduce --max-bytes 1M --gradients none --rounds 3": "a first look",
        "tfdist bench all-reduce --engine ring --workers 3": "one engine, three workers",
    },
    page="benchmarks",
)
@click.option(
    "--engine",
    "engines",
    type=click.Choice(list(all_reduce_bench.ENGINES)),
    multiple=True,
    help="Only this; repeatable. Default: all.",
)
@click.option(
    "--algorithm",
    "algorithms",
    type=click.Choice(ALGORITHMS),
    metavar="NAME",
    multiple=True,
    help="Over a link: native by this algorithm too.",
)
@click.option("--workers", type=click.IntRange(2), default=2, show_default=True, help="Workers of each engine.")
@click.option("--min-bytes", metavar="SIZE", default="4K", show_default=True, help="Smallest tensor.")
@click.option("--max-bytes", metavar="SIZE", default="256M", show_default=True, help="Largest tensor.")
@click.option(
    "--factor", type=click.IntRange(2), default=4, show_default=True, help="Each size is so many times the last."
)
@click.option(
    "--gradients",
    type=click.Choice([*MODELS, "none"]),
    default="resnet50",
    show_default=True,
    help="Also all gradients of this model.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements each.")
@click.option("--link", type=click.Choice(list(RATES)), help="A network of this rate between the workers. As root.")
@click.option("--delay", "delay_ms", metavar="MS", type=click.FloatRange(0), help="Delay of each packet.")
@json_option
@plot_option
def command(
    engines: tuple[str, ...],
    algorithms: tuple[str, ...],
    workers: int,
    min_bytes: str,
    max_bytes: str,
    factor: int,
    gradients: str,
    rounds: int,
    link: str | None,
    delay_ms: float | None,
    json_path: str | None,
    plot: Path | None,
) -> None:
    """Time and bandwidth of an all-reduce by engine, as nccl-tests print them.

    Workers on this machine's CPU sum float32 tensors, then the gradients of a model. The engines take turns:

    \b
    tensorflow     peer: TensorFlow's MultiWorkerMirroredStrategy as it is
    multi-worker   tfdist's strategy: TensorFlow's collectives, in packs of 4 MiB
    horovod        peer: hvd.allreduce of each tensor
    ring           tfdist's strategy: Horovod, tensors in groups
    native         tfdist's own collectives: shared memory, and TCP behind links
    open-mpi       peer: MPI_Allreduce of each tensor, in place; not behind links
    tcp, memcpy    the limits: its bytes through the line, plainly; one copy of the tensor in memory
    bare           a limit: a bare loop that sums through shared memory; not behind links

    A time is from the last worker's tensors, written anew, to the last sums; algbw the bytes over it, busbw algbw x
    2 (n - 1) / n; #wrong: elements that are not the exact sum; "vs": the peer's time over the engine's.
    """
    if plot is not None:
        require_matplotlib()
    if delay_ms is not None and link is None:
        raise click.UsageError("--delay is of a link; name one, such as --link 1gbit.")
    if algorithms and link is None:
        raise click.UsageError("--algorithm is of workers behind a link; name one, such as --link 1gbit.")
    setup = all_reduce_bench.Setup(
        algorithms=tuple(dict.fromkeys(algorithms)),
        engines=tuple(dict.fromkeys(engines)) or all_reduce_bench.engines(linked=link is not None),
        workers=workers,
        sizes=message.sizes(as_bytes(min_bytes), as_bytes(max_bytes), factor),
        gradients=None if gradients == "none" else gradients,
        rounds=rounds,
        link=None if link is None else Link(rate=link, delay_ms=delay_ms or 0.0),
    )
    quiet = json_path == "-"
    if not quiet:
        click.echo("\n".join(table.header(setup)))
    with unwinding(), Line() as line:

        def show(row: str, engine: str, number: int) -> None:
            line.update(f"{row}: {engine}, {turn(number, rounds)}")

        def print_row(row: all_reduce_bench.Row) -> None:
            if not quiet:
                click.echo("\n".join(table.lines(row, setup)))

        report = all_reduce_bench.run(setup, leave_out=not engines, on_turn=show, on_row=print_row)
    if quiet:
        click.echo(report.to_json())
    else:
        click.echo("\n".join(table.footer(report)))
        if json_path:
            Path(json_path).write_text(report.to_json() + "\n", encoding="utf-8")
    if plot is not None:
        picture.draw(report, plot)
