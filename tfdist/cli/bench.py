"""`tfdist bench`: speed beside the peers."""

from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench import all_reduce as all_reduce_bench
from tfdist.bench import message, picture, table
from tfdist.bench import step as step_bench
from tfdist.cli import bench_checkpoint, bench_data, bench_recovery, bench_servers
from tfdist.cli.progress import Line
from tfdist.errors import MissingDependencyError
from tfdist.strategies import registry

_MODELS = ("perceptron", "convolutional", "resnet50")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def command() -> None:
    """Measure speed beside the peers, in turns within one run.

    A figure is a ratio of the two sides' times in the same round, given as median [quartiles]; above 1 tfdist is
    faster. Absolute times depend on the machine and on what else it does; ratios much less.
    """


command.add_command(bench_servers.command)
command.add_command(bench_data.command)
command.add_command(bench_checkpoint.command)
command.add_command(bench_recovery.command)


@command.command(short_help="Steps per second of `fit`, beside hand-written loops.")
@click.option("--strategy", type=click.Choice(registry.names()), multiple=True, help="Default: all.")
@click.option("--model", type=click.Choice(_MODELS), default="perceptron", show_default=True, help="What is trained.")
@click.option(
    "--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes, where there are several."
)
@click.option(
    "--replicas", type=click.IntRange(1), default=2, show_default=True, help="Devices, where there is one process."
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Examples per step, over all replicas."
)
@click.option(
    "--warm-up-steps", type=click.IntRange(1), default=3, show_default=True, help="Steps before the first measurement."
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements of each side.")
@click.option("--json", "json_path", metavar="FILE", help="Write the reports as a JSON list; - for standard output.")
def step(
    strategy: tuple[str, ...],
    model: str,
    workers: int,
    replicas: int,
    batch_size: int,
    warm_up_steps: int,
    steps: int,
    rounds: int,
    json_path: str | None,
) -> None:
    """Steps per second: tfdist with `fit` beside hand-written loops on its peers.

    The peers are TensorFlow's own strategy, in the loop of its guide, and for the ring also Horovod's
    DistributedGradientTape around a plain model, in the loop of its synthetic benchmark.

    \b
    perceptron      25 M parameters in 50 tensors: communication weighs (the default)
    convolutional   0.1 M parameters: what a step costs beside computing shows
    resnet50        25.6 M parameters, 224 x 224 images: slow on a CPU; try --batch-size 8 --steps 2

    "Examples per second" is over all workers: the examples of a round by the time of its slowest worker, as mean and
    1.96 standard deviations of the rounds. "Cost of correctness" is the time of a step of `fit` over that of a bare
    loop under tfdist's own strategy, which neither weighs examples nor reduces metrics nor calls callbacks. Runs on the
    CPU.
    """
    reports = []
    with Line() as line:
        for name in strategy or registry.names():
            one = registry.get(name).processes == "one"
            setup = step_bench.Setup(
                strategy=name,
                workers=1 if one else workers,
                replicas_per_worker=replicas if one else 1,
                model=model,
                global_batch_size=batch_size,
                warm_up_steps=warm_up_steps,
                steps=steps,
                rounds=rounds,
            )

            def show(arm: str, number: int, setup: step_bench.Setup = setup) -> None:
                line.update(f"{setup.strategy}: {arm}, {_round(number, setup.rounds)}")

            try:
                reports.append(step_bench.run(setup, on_round=show))
            except MissingDependencyError as error:
                if strategy:
                    raise
                click.echo(f"{name} left out: {error}", err=True)
    text = "[\n" + ",\n".join(report.to_json() for report in reports) + "\n]\n"
    if json_path == "-":
        click.echo(text, nl=False)
        return
    if json_path:
        Path(json_path).write_text(text, encoding="utf-8")
    _print_steps(reports)


@command.command("all-reduce", short_help="Time and bandwidth of an all-reduce, engine beside engine.")
@click.option(
    "--engine",
    "engines",
    type=click.Choice(list(all_reduce_bench.ENGINES)),
    multiple=True,
    help="Only this one; may be given several times. Default: all that are installed.",
)
@click.option("--workers", type=click.IntRange(2), default=2, show_default=True, help="Processes of each engine.")
@click.option("--min-bytes", metavar="SIZE", default="4K", show_default=True, help="Smallest tensor.")
@click.option("--max-bytes", metavar="SIZE", default="256M", show_default=True, help="Largest tensor.")
@click.option("--factor", type=click.IntRange(2), default=4, show_default=True, help="From one size to the next.")
@click.option(
    "--gradients",
    type=click.Choice([*_MODELS, "none"]),
    default="resnet50",
    show_default=True,
    help="Also all gradients of this model in one step.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements of each engine.")
@click.option("--json", "json_path", metavar="FILE", help="Write the report as JSON; - for standard output.")
@click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Draw it, as a PNG.")
def all_reduce(
    engines: tuple[str, ...],
    workers: int,
    min_bytes: str,
    max_bytes: str,
    factor: int,
    gradients: str,
    rounds: int,
    json_path: str | None,
    plot: Path | None,
) -> None:
    """Time and bandwidth of an all-reduce, engine beside engine, as nccl-tests print them.

    \b
    tensorflow     the peer: TensorFlow's MultiWorkerMirroredStrategy as it is
    multi-worker   tfdist's strategy: TensorFlow's collectives, in packs of 4 MiB
    horovod        the peer: hvd.allreduce of each tensor
    ring           tfdist's strategy: Horovod, tensors in groups

    algbw is S / t, for S bytes in t seconds. busbw is algbw x 2 (n - 1) / n, what each link of n workers would carry in
    a perfect all-reduce; with two workers both are equal. A measurement is the mean of 1 to 50 calls, after one that is
    not counted; 2 to 5 more come before the first measurement. The time is the slower worker's. #wrong counts elements,
    over all workers, that are not the sum: the tensors hold integers whose sum is exact. The processes of all engines
    stay; those of Horovod, which look for work a thousand times a second, are held while others have their turn. Runs
    on the CPU.
    """
    if plot is not None:
        picture.require_matplotlib()
    setup = all_reduce_bench.Setup(
        engines=engines or tuple(all_reduce_bench.ENGINES),
        workers=workers,
        sizes=message.sizes(message.as_bytes(min_bytes), message.as_bytes(max_bytes), factor),
        gradients=None if gradients == "none" else gradients,
        rounds=rounds,
    )
    quiet = json_path == "-"
    if not quiet:
        click.echo("\n".join(table.header(setup)))
    with Line() as line:

        def show(row: str, engine: str, number: int) -> None:
            line.update(f"{row}: {engine}, {_round(number, rounds)}")

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


def _round(number: int, rounds: int) -> str:
    return f"round {number} of {rounds}" if number else "warming up"


def _print_steps(reports: list[step_bench.StepReport]) -> None:
    if not reports:
        return
    setups = [report.setup for report in reports]
    result = Table("", *(f"{s.strategy}, {s.workers} x {s.replicas_per_worker}" for s in setups), box=None)
    arms = [arm for arm in step_bench.arms("ring") if any(arm in report.seconds for report in reports)]
    for arm in arms:
        times = [report.seconds.get(arm) for report in reports]
        result.add_row(
            f"{arm}, ms per step", *("-" if time is None else f"{1000 * median(time):.1f}" for time in times)
        )
    for arm in arms:
        rates = [str(report.throughput(arm)) if arm in report.seconds else "-" for report in reports]
        result.add_row(f"{arm}, examples per second", *rates)
    for peer in step_bench.PEERS:
        speeds = [report.speed(peer) for report in reports]
        if any(speeds):
            shown = [escape(str(speed)) if speed else "-" for speed in speeds]
            result.add_row(f"speed of fit, against the {peer}", *shown)
    result.add_row(
        "cost of correctness, fit / tfdist loop", *(escape(str(report.correctness_cost)) for report in reports)
    )
    console = Console()
    console.print(result)
    about = reports[0].machine
    console.print(
        f"{setups[0].model}, global batch {setups[0].global_batch_size}; {setups[0].warm_up_steps} steps to warm up, "
        f"{setups[0].rounds} rounds of {setups[0].steps} steps; processes x replicas; ratios as median [lower-upper "
        f"quartile], examples per second as mean +- 1.96 standard deviations; {about['processor']}, {about['cores']} "
        f"cores, TensorFlow {about['tensorflow']}, {about['time']}, load {about['load average']}",
        highlight=False,
        markup=False,
    )
