"""`tfdist bench`: speed beside the peers."""

from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.bench import step as step_bench
from tfdist.strategies import registry

_MODELS = ("perceptron", "convolutional", "resnet50")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def command() -> None:
    """Measure speed beside the peers, in turns within one run.

    A figure is a ratio of the two sides' times in the same round, given as median [quartiles]; above 1 tfdist is
    faster. Absolute times depend on the machine and on what else it does; ratios much less.
    """


@command.command()
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
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Measurements of each side.")
@click.option("--json", "json_path", metavar="FILE", help="Write the reports as a JSON list; - for standard output.")
def step(
    strategy: tuple[str, ...],
    model: str,
    workers: int,
    replicas: int,
    batch_size: int,
    steps: int,
    rounds: int,
    json_path: str | None,
) -> None:
    """Steps per second: tfdist with `fit` beside TensorFlow's own strategy in a hand-written loop.

    \b
    perceptron      25 M parameters in 50 tensors: communication weighs (the default)
    convolutional   0.1 M parameters: what a step costs beside computing shows
    resnet50        25.6 M parameters, 224 x 224 images: slow on a CPU

    "cost of correctness" is the time of a step of `fit` over that of a bare loop under tfdist's own strategy, which
    neither weighs examples nor reduces metrics nor calls callbacks. Runs on the CPU.
    """
    console = Console(stderr=True)
    reports = []
    with console.status("starting") as status:
        for name in strategy or registry.names():
            one = registry.get(name).processes == "one"
            setup = step_bench.Setup(
                strategy=name,
                workers=1 if one else workers,
                replicas_per_worker=replicas if one else 1,
                model=model,
                global_batch_size=batch_size,
                steps=steps,
                rounds=rounds,
            )

            def show(arm: str, number: int, setup: step_bench.Setup = setup) -> None:
                status.update(
                    f"{setup.strategy}: {arm}, " + (f"round {number} of {setup.rounds}" if number else "warming up")
                )

            reports.append(step_bench.run(setup, on_round=show))
    text = "[\n" + ",\n".join(report.to_json() for report in reports) + "\n]\n"
    if json_path == "-":
        click.echo(text, nl=False)
        return
    if json_path:
        Path(json_path).write_text(text, encoding="utf-8")
    _print(reports)


def _print(reports: list[step_bench.StepReport]) -> None:
    setups = [report.setup for report in reports]
    table = Table("", *(f"{s.strategy}, {s.workers} x {s.replicas_per_worker}" for s in setups), box=None)
    for arm in step_bench.ARMS:
        table.add_row(f"{arm}, ms per step", *(f"{1000 * median(report.seconds[arm]):.1f}" for report in reports))
    table.add_row("speed of fit, against the tensorflow loop", *(escape(str(report.speed)) for report in reports))
    table.add_row(
        "cost of correctness, fit / tfdist loop", *(escape(str(report.correctness_cost)) for report in reports)
    )
    console = Console()
    console.print(table)
    console.print(
        f"{setups[0].model}, global batch {setups[0].global_batch_size}; {setups[0].rounds} rounds of "
        f"{setups[0].steps} steps; processes x replicas; ratios as median, lower and upper quartile; "
        f"{reports[0].machine}",
        highlight=False,
    )
