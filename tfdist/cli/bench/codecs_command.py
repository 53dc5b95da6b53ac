"""`tfdist bench codecs`: what gradient compression sends, costs and gains, codec beside codec."""

from pathlib import Path

import click

from tfdist.bench.codecs import codec_choice
from tfdist.bench.codecs.codec_bench import CodecBench
from tfdist.bench.codecs.codec_race import CodecRace
from tfdist.bench.suite import MODELS, Suite
from tfdist.cli.bench.suite_command import leave, link_of, link_options, measured
from tfdist.cli.common.command import Command
from tfdist.cli.common.written_files import json_option, plot_option
from tfdist.planner.plot_style import require_matplotlib


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
@click.option("--codec", "codecs", metavar="NAME", multiple=True, help="Such as powersgd:rank=4; repeatable.")
@click.option("--import", "modules", metavar="MODULE", multiple=True, help="Registers codecs of yours.")
@click.option("--model", type=click.Choice(MODELS), help=f"Default: {CodecBench.model}.")
@click.option("--workers", type=click.IntRange(2), default=2, show_default=True, help="Processes.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Of all workers.")
@link_options
@click.option("--steps", type=click.IntRange(1), help=f"At once: {CodecBench.steps}; to train: {CodecRace.steps}.")
@click.option("--rounds", type=click.IntRange(1), help=f"Of each: {CodecBench.rounds}; to train: {CodecRace.rounds}.")
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
    between = link_of(link, delay_ms)
    if plot is not None and not train:
        raise click.UsageError("--plot draws accuracy over time; add --train.")
    if train and model is not None:
        raise click.UsageError("--train has a model of its own; leave --model out.")
    if plot is not None:
        require_matplotlib()
    codec_choice.load(modules)
    for codec in codecs:
        codec_choice.codec_of(codec)
    names = tuple(dict.fromkeys(codecs)) or codec_choice.DEFAULT
    if train:
        from tfdist.testing import digits

        suite: Suite = CodecRace(
            codecs=names,
            data=digits.write_digits(),
            workers=workers,
            global_batch_size=batch_size,
            steps=steps or CodecRace.steps,
            target=target,
            rounds=rounds or CodecRace.rounds,
            link=between,
            modules=modules,
        )
    else:
        suite = CodecBench(
            codecs=names,
            model=model or CodecBench.model,
            workers=workers,
            global_batch_size=batch_size,
            warm_up_steps=min(2, steps or CodecBench.steps),
            steps=steps or CodecBench.steps,
            rounds=rounds or CodecBench.rounds,
            link=between,
            modules=modules,
        )
    leave(measured(suite), json_path, plot)
