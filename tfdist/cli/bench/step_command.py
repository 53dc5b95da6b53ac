"""`tfdist bench step`: steps per second of `fit` and of hand-written loops."""

from typing import Any

import click

from tfdist.bench.step_bench import STRATEGIES, StepBench, StepReport, shown
from tfdist.cli.bench.suite_command import show
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import field_options, json_option, write_json
from tfdist.cli.common.progress import Line, unwinding
from tfdist.cluster import strategy_table
from tfdist.errors import MissingDependencyError


@click.command(
    "step",
    cls=Command,
    examples={
        "tfdist bench step": "every strategy: minutes",
        "tfdist bench step --strategy multi-worker --collectives native": "one backend",
        "tfdist bench step --model small --steps 200 --steps-per-execution 20": "steps of 1 ms",
    },
    page="benchmarks",
)
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), multiple=True, help="Only this one; repeatable. Default: all."
)
@click.option(
    "--collectives",
    type=click.Choice(strategy_table.COLLECTIVES),
    multiple=True,
    help="Backends for multi-worker; repeatable.",
)
@click.option("--replicas", type=click.IntRange(1), default=2, help="Replicas under mirrored.")
@field_options(StepBench)
@json_option
def command(
    strategy: tuple[str, ...],
    collectives: tuple[str, ...],
    replicas: int,
    workers: int,
    json_path: str | None,
    **options: Any,
) -> None:
    """Steps per second: tfdist's `fit` and hand-written loops of its peers.

    All train the same model and data on as many CPU replicas, in turns:

    \b
    tensorflow loop   peer: TensorFlow's own strategy, in the loop of its guide
    horovod loop      peer for workers: DistributedGradientTape, in Horovod's own loop
    tfdist loop       tfdist's strategy in TensorFlow's loop, without the corrections of `fit`
    tfdist fit        tfdist's strategy, compile and fit

    "Speed of fit" is the peer's time divided by that of `fit`; above 1, tfdist is faster. "Cost of correctness" is the
    time of `fit` divided by that of the tfdist loop, which neither weights examples nor reduces metrics. Examples per
    second count all workers by the time of the slowest: mean and 1.96 standard deviations.

    \b
    perceptron        25 M parameters in 50 tensors: communication dominates
    convolutional     0.1 M parameters: shows the overhead of a step
    small             7,000 parameters: almost only overhead
    resnet50          25.6 M parameters: slow on a CPU; try --batch-size 8 --steps 2
    """
    setups = [
        StepBench(
            strategy=name,
            workers=1 if strategy_table.get(name).processes == "one" else workers,
            replicas_per_worker=replicas if strategy_table.get(name).processes == "one" else 1,
            collectives=backend,
            **options,
        )
        for name in dict.fromkeys(strategy or STRATEGIES)
        for backend in (dict.fromkeys(collectives) if collectives and name == "multi-worker" else (None,))
    ]
    reports = list[StepReport]()
    try:
        with unwinding(), Line() as line:
            for setup in setups:
                try:
                    reports.append(setup.run(line.update))
                except MissingDependencyError as error:
                    if strategy:
                        raise
                    click.echo(f"{setup.strategy} left out: {error}", err=True)
    finally:  # shows earlier measurements even after a failed strategy or Ctrl-C
        if reports:
            write_json("[\n" + ",\n".join(report.to_json() for report in reports) + "\n]", json_path)
        if reports and json_path != "-":
            show(shown(reports))
