"""`tfdist bench all-reduce`: time and bandwidth of an all-reduce, backend by backend."""

from pathlib import Path

import click

from tfdist.bench.all_reduce.all_reduce_bench import ENGINES, AllReduceBench, engines, header, lines
from tfdist.bench.all_reduce.reduced_message import sizes
from tfdist.bench.suite import MODELS
from tfdist.cli.bench.suite_command import link_of, link_options
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import field_options, json_option, plot_option, write_json
from tfdist.cli.common.progress import Line, unwinding
from tfdist.native.engine import ALGORITHMS
from tfdist.planner.plot_style import require_matplotlib
from tfdist.validation import as_bytes


@click.command(
    "all-reduce",
    cls=Command,
    examples={
        "tfdist bench all-reduce --plot all-reduce.png": "all backends: minutes",
        "tfdist bench all-reduce --max-bytes 1M --gradients none --rounds 3": "a first look",
        "tfdist bench all-reduce --engine ring --workers 3": "one backend, three workers",
    },
    page="benchmarks",
)
@click.option(
    "--engine",
    "chosen",
    type=click.Choice(list(ENGINES)),
    multiple=True,
    help="Only this one; repeatable. Default: all.",
)
@click.option(
    "--algorithm",
    "algorithms",
    type=click.Choice(ALGORITHMS),
    metavar="NAME",
    multiple=True,
    help="With --link: native by this algorithm, too.",
)
@click.option("--min-bytes", metavar="SIZE", default="4K", help="Smallest tensor.")
@click.option("--max-bytes", metavar="SIZE", default="256M", help="Largest tensor.")
@click.option("--factor", type=click.IntRange(2), default=4, help="Factor from one size to the next.")
@click.option(
    "--gradients",
    type=click.Choice([*MODELS, "none"]),
    default="resnet50",
    help="Also reduce the gradients of this model.",
)
@link_options
@field_options(AllReduceBench)
@json_option
@plot_option
def command(
    chosen: tuple[str, ...],
    algorithms: tuple[str, ...],
    min_bytes: str,
    max_bytes: str,
    factor: int,
    gradients: str,
    link: str | None,
    delay_ms: float | None,
    json_path: str | None,
    plot: Path | None,
    **options: int,
) -> None:
    """Time and bandwidth of an all-reduce by backend, as nccl-tests print them.

    Workers on this machine's CPU sum float32 tensors, then the gradients of a model. The backends take turns:

    \b
    tensorflow     peer: TensorFlow's own MultiWorkerMirroredStrategy
    multi-worker   tfdist's strategy: TensorFlow's collectives, in packs of 4 MiB
    horovod        peer: hvd.allreduce of each tensor
    ring           tfdist's strategy: Horovod, tensors in groups
    native         tfdist's own collectives: shared memory, or TCP with --link
    open-mpi       peer: MPI_Allreduce of each tensor, in place; not with --link
    tcp, memcpy    limits: the same bytes over plain TCP; one copy of the tensor in memory
    bare           limit: a bare loop that sums in shared memory; not with --link

    The time runs from the last worker's fresh tensors to the last sums. algbw is bytes / time, busbw is algbw x
    2 (n - 1) / n, #wrong counts elements that differ from the exact sum, and "vs" is the peer's time / this time.
    """
    if plot is not None:
        require_matplotlib()
    if algorithms and link is None:
        raise click.UsageError("--algorithm needs a link between workers, such as --link 1gbit.")
    suite = AllReduceBench(
        engines=tuple(dict.fromkeys(chosen)) or engines(linked=link is not None),
        algorithms=tuple(dict.fromkeys(algorithms)),
        sizes=sizes(as_bytes(min_bytes), as_bytes(max_bytes), factor),
        gradients=None if gradients == "none" else gradients,
        link=link_of(link, delay_ms),
        leave_out=not chosen,
        **options,
    )
    quiet = json_path == "-"
    if not quiet:
        click.echo("\n".join(header(suite)))
    with unwinding(), Line() as line:
        report = suite.run(line.update, lambda row: None if quiet else click.echo("\n".join(lines(row, suite))))
    if not quiet:
        click.echo("\n".join(report.footer()))
    write_json(report.to_json(), json_path)
    if plot is not None:
        report.draw(plot)
