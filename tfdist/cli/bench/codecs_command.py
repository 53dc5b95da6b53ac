"""`tfdist bench codecs`: the traffic, costs and gains of each codec for gradient compression."""

from pathlib import Path
from typing import Any

import click

from tfdist.bench.codecs import codec_choice
from tfdist.bench.codecs.codec_bench import CodecBench
from tfdist.bench.codecs.codec_race import CodecRace
from tfdist.bench.suite import MODELS, Suite
from tfdist.cli.bench.suite_command import leave, link_of, link_options, measured
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import json_option, plot_option
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
@click.option("--codec", "codecs", metavar="NAME", multiple=True, help="Codec, such as powersgd:rank=4; repeatable.")
@click.option("--import", "modules", metavar="MODULE", multiple=True, help="Registers your codecs; repeatable.")
@click.option("--model", type=click.Choice(MODELS), help=f"Model to train; default: {CodecBench.model}.")
@click.option("--workers", type=click.IntRange(2), default=2, help="Worker processes.")
@click.option("--batch-size", type=click.IntRange(1), default=64, help="Global batch size.")
@link_options
@click.option("--steps", type=click.IntRange(1), help=f"Default: {CodecBench.steps}; with --train {CodecRace.steps}.")
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Default: {CodecBench.rounds}; with --train {CodecRace.rounds}."
)
@click.option("--train", is_flag=True, help="Train to an accuracy, not for steps.")
@click.option("--target", type=click.FloatRange(0, 1, min_open=True), default=0.95, help="Target accuracy.")
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
    """Gradient compression: bytes sent, step time, and time to accuracy.

    The same model trains by `fit` with DistributedOptimizer(compression=...) and by the peer, in turns:

    \b
    noop       no reduction at all: the limit of a perfect codec
    horovod    peer: DistributedGradientTape, uncompressed, in Horovod's own loop
    none       tfdist without compression; a row for each codec follows

    \b
    sent       bytes that a worker's interface sends per step, with headers and metrics
    payload    the same without packet headers
    formula    bytes of the gradients by the codec's formula; payl./form. is the ratio
    encode     computing time until the first message; decode: from then on
    vs         the other's time / this time in the same round; above 1, this one is faster
    error      |total - exact| / |exact| over all gradients of one batch, in a first step

    With --train: digits, by a perceptron of 2.2 M parameters; seconds exclude tracing and evaluation.
    """
    between = link_of(link, delay_ms)
    if plot is not None and not train:
        raise click.UsageError("--plot draws accuracy over time; it needs --train.")
    if train and model is not None:
        raise click.UsageError("--train has its own model; omit --model.")
    if plot is not None:
        require_matplotlib()
    codec_choice.load(modules)
    for codec in codecs:
        codec_choice.codec_of(codec)
    names = tuple(dict.fromkeys(codecs)) or codec_choice.DEFAULT
    given = {name: value for name, value in (("model", model), ("steps", steps), ("rounds", rounds)) if value}
    both: dict[str, Any] = {"codecs": names, "workers": workers, "global_batch_size": batch_size, **given}
    both |= {"link": between, "modules": modules}
    if train:
        from tfdist.testing import digits

        suite: Suite = CodecRace(data=digits.write_digits(), target=target, **both)
    else:
        suite = CodecBench(warm_up_steps=min(2, steps or CodecBench.steps), **both)
    leave(measured(suite), json_path, plot)
