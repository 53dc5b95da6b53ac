"""`tfdist bench`: speed beside the peers; one file per benchmark."""

import click

from tfdist.cli.common.group import LazyGroup

COMMANDS = {
    "step": "Steps per second of `fit`, beside hand-written loops.",
    "all-reduce": "Time and bandwidth of an all-reduce, engine beside engine.",
    "codecs": "Gradient compression: bytes, steps, time to accuracy.",
    "data": "TFRecord data: writing, reading and resuming.",
    "checkpoint": "How long training stops for a backup, beside Keras'.",
    "recovery": "How long a job takes to recover from a killed worker.",
    "parameter-server": "Parameter servers: a slow worker, and a large table.",
    "sharded": "Sharded data parallelism: memory, bytes and step time.",
    "model-parallel": "A transformer over two processes, beside one and DTensor.",
    "pipeline": "A transformer in two stages, beside one process.",
    "plan": "What plans predict of steps, beside steps of fit.",
    "monitor": "What recording steps adds to them, part by part.",
}


@click.group(
    cls=LazyGroup,
    package="tfdist.cli.bench",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def command() -> None:
    """Measure speed beside the peers, in turns within one run.

    A figure is a ratio of the two sides' times in the same round, given as median [quartiles]; above 1 tfdist is
    faster. Absolute times depend on the machine and on what else it does; ratios much less.
    """
