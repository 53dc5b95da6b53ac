"""`tfdist bench step`: steps per second of `fit`, beside hand-written loops."""

import sys
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench.step import benchmark as step_bench
from tfdist.cli.bench.output import MODELS, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.cluster import strategy_table
from tfdist.errors import MissingDependencyError

_WIDTH_IN_FILES = 120


@click.command(
    "step",
    cls=Command,
    examples={
        "tfdist bench step": "every strategy: minutes",
        "tfdist bench step --strategy multi-worker --collectives native": "one engine",
        "tfdist bench step --model small --steps 200 --steps-per-execution 20": "steps of 1 ms",
    },
    page="benchmarks",
)
@click.option(
    "--strategy",
    type=click.Choice(step_bench.STRATEGIES),
    multiple=True,
    help="Only this one; repeatable. Default: all.",
)
@click.option(
    "--collectives",
    type=click.Choice(strategy_table.COLLECTIVES),
    multiple=True,
    help="Of multi-worker; repeatable.",
)
@click.option("--model", type=click.Choice(MODELS), default="perceptron", show_default=True, help="What is trained.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Not of mirrored.",
)
@click.option("--replicas", type=click.IntRange(1), default=2, show_default=True, help="Replicas of mirrored.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Of all replicas.")
@click.option(
    "--warm-up-steps",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Steps to warm up.",
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps per measurement.")
@click.option(
    "--steps-per-execution",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of one more `fit`.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements each.")
@json_option
def command(
    strategy: tuple[str, ...],
    collectives: tuple[str, ...],
    model: str,
    workers: int,
    replicas: int,
    batch_size: int,
    warm_up_steps: int,
    steps: int,
    steps_per_execution: int,
    rounds: int,
    json_path: str | None,
) -> None:
    """Steps per second: tfdist with `fit` beside hand-written loops on its peers.

    The same model and data, on as many replicas, on the CPU, in turns:

    \b
    tensorflow loop   peer: TensorFlow's own strategy, in the loop of its guide
    horovod loop      peer of workers: DistributedGradientTape, in Horovod's own loop
    tfdist loop       tfdist's strategy in TensorFlow's loop, without what makes `fit` right
    tfdist fit        tfdist's strategy, compile and fit

    "Speed of fit" is a peer's time over that of `fit`: above 1 tfdist is faster. "Cost of correctness" is the time of
    `fit` over that of the tfdist loop, which neither weighs examples nor reduces metrics. Examples are those of
    all workers, by the time of the slowest worker: mean and 1.96 standard deviations.

    \b
    perceptron        25 M parameters in 50 tensors: communication weighs
    convolutional     0.1 M parameters: what a step costs beside computing shows
    small             7,000 parameters: little else than that
    resnet50          25.6 M parameters: slow on a CPU; try --batch-size 8 --steps 2
    """
    setups = [
        step_bench.Setup(
            strategy=name,
            workers=1 if strategy_table.get(name).processes == "one" else workers,
            replicas_per_worker=replicas if strategy_table.get(name).processes == "one" else 1,
            model=model,
            global_batch_size=batch_size,
            warm_up_steps=warm_up_steps,
            steps=steps,
            rounds=rounds,
            collectives=engine,
            steps_per_execution=steps_per_execution,
        )
        for name in dict.fromkeys(strategy or step_bench.STRATEGIES)
        for engine in (dict.fromkeys(collectives) if collectives and name == "multi-worker" else (None,))
    ]
    reports = list[step_bench.StepReport]()
    try:
        with unwinding(), Line() as line:
            for setup in setups:
                report = _measured(setup, line, leave_out=not strategy)
                reports += [report] if report else []
    finally:  # also what was measured before another strategy failed, or Ctrl-C
        if reports:
            _leave(reports, json_path)


def _measured(setup: step_bench.Setup, line: Line, *, leave_out: bool) -> step_bench.StepReport | None:
    def show(arm: str, number: int) -> None:
        line.update(f"{setup.strategy}: {arm}, {turn(number, setup.rounds)}")

    try:
        return step_bench.run(setup, on_round=show)
    except MissingDependencyError as error:
        if not leave_out:
            raise
        click.echo(f"{setup.strategy} left out: {error}", err=True)
        return None


def _leave(reports: list[step_bench.StepReport], json_path: str | None) -> None:
    text = "[\n" + ",\n".join(report.to_json() for report in reports) + "\n]\n"
    if json_path == "-":
        click.echo(text, nl=False)
        return
    if json_path:
        Path(json_path).write_text(text, encoding="utf-8")
    _print_steps(reports)


def _title(setup: step_bench.Setup) -> str:
    name = setup.strategy if setup.collectives is None else f"{setup.strategy} {setup.collectives}"
    return f"{name}, {setup.workers} x {setup.replicas_per_worker}"


def _print_steps(reports: list[step_bench.StepReport]) -> None:
    setups = [report.setup for report in reports]
    result = Table("", *map(_title, setups), box=None)
    every = step_bench.arms("ring", steps_per_execution=setups[0].steps_per_execution)
    arms = [arm for arm in every if any(arm in report.seconds for report in reports)]
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
    several = [report.speed_of_several_steps for report in reports]
    if any(several):
        what = f"speed of {setups[0].steps_per_execution} steps at once, against single ones"
        result.add_row(what, *(escape(str(speed)) for speed in several))
    result.add_row(
        "cost of correctness, fit / tfdist loop", *(escape(str(report.correctness_cost)) for report in reports)
    )
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)
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
