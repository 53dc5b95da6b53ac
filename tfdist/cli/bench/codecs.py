"""`tfdist bench codecs`: what gradient compression sends, costs and gains, codec beside codec."""

from pathlib import Path

import click

from tfdist.bench.codecs import benchmark, choice, picture, race, table
from tfdist.bench.workers.links import RATES, Link
from tfdist.cli.bench.output import MODELS, leave, turn
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option, plot_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Line
from tfdist.measurement.pictures import require_matplotlib

_ROUNDS, _STEPS = 5, 10
_TRAININGS, _TRAINING_STEPS = 1, 150


@click.command(
    "codecs",
    cls=Command,
    examples={
        "tfdist bench codecs --model small --codec topk": "a first look",
        "tfdist bench codecs --link 100mbit --steps 1": "as root",
        "tfdist bench codecs --link 1gbit --train --plot codecs.png": "to accuracy",
    },
    page="benchmarks",
)
@click.option(
    "--codec",
    "codecs",
    metavar="NAME",
    multiple=True,
    help="Such as powersgd:rank=4; repeatable.",
)
@click.option("--import", "modules", metavar="MODULE", multiple=True, help="Registers codecs of yours.")
@click.option("--model", type=click.Choice(MODELS), help="Default: perceptron.")
@click.option("--workers", type=click.IntRange(2), default=2, show_default=True, help="Processes.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Of all workers.")
@click.option("--link", type=click.Choice(list(RATES)), help="Between the workers. As root.")
@click.option("--delay", "delay_ms", metavar="MS", type=click.FloatRange(0), help="Delay of each packet.")
@click.option("--steps", type=click.IntRange(1), help=f"At once: {_STEPS}; to train: {_TRAINING_STEPS}.")
@click.option("--rounds", type=click.IntRange(1), help=f"Of each: {_ROUNDS}; to train: {_TRAININGS}.")
@click.option("--train", is_flag=True, help="To accuracy, instead of steps.")
@click.option(
    "--target", type=click.FloatRange(0, 1, min_open=True), default=0.95, show_default=True, help="That accuracy."
)
@json_option
@plot_option
def command(
    codecs: tuple[str, ...],
    modules: tuple[str, ...],
    model: str | None,
    workers: int,
    batch_size: int,
    link: str | None,
    delay_ms: float | None,
    steps: int | None,
    rounds: int | None,
    train: bool,
    target: float,
    json_path: str | None,
    plot: Path | None,
) -> None:
    """Gradient compression: bytes, the time of a step, and time to accuracy.

    The same model by `fit` with DistributedOptimizer(compression=...), and by its peer, in turns:

    \b
    noop       gradients are not reduced at all: what an infinitely good codec would give
    horovod    the peer: DistributedGradientTape, uncompressed, in Horovod's own loop
    none       tfdist without compression; then a row for each codec

    \b
    sent       bytes that left a worker's interface in a step, headers and metrics included
    payload    those without the headers of packets
    formula    bytes of the gradients by the codec's formula; payl./form.: the one over the other
    encode     computing until the first message leaves; decode: from then on
    vs         the other's time over this one's, in the same round; above 1 this one is faster
    error      |total - exact| / |exact| over all gradients of one batch, in a first step

    To accuracy: digits, by a perceptron of 2.2 M parameters; seconds of training, without tracing and tests.
    """
    if delay_ms is not None and link is None:
        raise click.UsageError("--delay is of a link; name one, such as --link 100mbit.")
    if plot is not None and not train:
        raise click.UsageError("--plot draws accuracy over time; add --train.")
    if train and model is not None:
        raise click.UsageError("--train has a model of its own; leave --model out.")
    if plot is not None:
        require_matplotlib()
    choice.load(modules)
    for codec in codecs:
        choice.codec_of(codec)
    names = tuple(dict.fromkeys(codecs)) or choice.DEFAULT
    between = None if link is None else Link(rate=link, delay_ms=delay_ms or 0.0)
    if train:
        setup = _race(names, modules, workers, batch_size, between, steps, rounds, target)
        with unwinding(), Line() as line:
            found = race.run(setup, on_turn=lambda name, number: line.update(f"{name}, {turn(number, setup.rounds)}"))
        leave(found, json_path, lambda report: click.echo("\n".join(table.race_lines(report))))
        if plot is not None:
            picture.draw(found, plot)
        return
    measured = benchmark.Setup(
        codecs=names,
        model=model or "perceptron",
        workers=workers,
        global_batch_size=batch_size,
        warm_up_steps=min(2, steps or _STEPS),
        steps=steps or _STEPS,
        rounds=rounds or _ROUNDS,
        link=between,
        modules=modules,
    )
    with unwinding(), Line() as line:
        report = benchmark.run(
            measured, on_turn=lambda name, number: line.update(f"{name}, {turn(number, measured.rounds)}")
        )
    leave(report, json_path, lambda report: click.echo("\n".join(table.step_lines(report))))


def _race(
    names: tuple[str, ...],
    modules: tuple[str, ...],
    workers: int,
    batch_size: int,
    between: Link | None,
    steps: int | None,
    rounds: int | None,
    target: float,
) -> race.Race:
    from tfdist.testing import digits

    return race.Race(
        codecs=names,
        data=digits.write_digits(),
        workers=workers,
        global_batch_size=batch_size,
        steps=steps or _TRAINING_STEPS,
        target=target,
        rounds=rounds or _TRAININGS,
        link=between,
        modules=modules,
    )
