"""`tfdist bench`: the speed of tfdist compared with its peers, with one file for each benchmark."""

import click

from tfdist.cli.common.command import PASSES_ARGUMENTS, SETTINGS, LazyGroup

COMMANDS = {
    "step": "Steps per second of `fit` and of hand-written loops.",
    "all-reduce": "Time and bandwidth of an all-reduce, backend by backend.",
    "codecs": "Gradient compression: bytes sent, step time, time to accuracy.",
    "guard": "Check whether tfdist is slower than an earlier release.",
}
#: Benchmarks of tfdist itself that have moved. For one release, their old names say how to run them.
MOVED = (
    *("checkpoint", "data", "model-parallel", "monitor", "parameter-server"),
    *("pipeline", "plan", "recovery", "sharded"),
)


class _Benchmarks(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return moved(cmd_name) if cmd_name in MOVED else super().get_command(ctx, cmd_name)


def moved(name: str) -> click.Command:
    """Return a command that says how to run a benchmark now, and exits with 2."""
    there = f"python -m benchmarks {name}"

    @click.command(
        name,
        hidden=True,
        help=f"Moved: in a clone of the repository, {there}.",
        context_settings={**PASSES_ARGUMENTS, "ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(context: click.Context, arguments: tuple[str, ...]) -> None:
        click.echo(
            f"Warning: `tfdist bench {name}` measures tfdist itself and is no longer installed with it.\n"
            f"In a clone of the repository: {' '.join([there, *arguments])}",
            err=True,
        )
        context.exit(2)

    return command


@click.group(
    cls=_Benchmarks,
    package="tfdist.cli.bench",
    modules="{}_command",
    table=COMMANDS,
    examples={
        "tfdist bench all-reduce --max-bytes 1M --gradients none --rounds 3": "a first look",
        "tfdist bench step --strategy multi-worker": "steps of two workers",
    },
    page="benchmarks",
    context_settings=SETTINGS,
)
def command() -> None:
    """Compare the speed of tfdist with its peers, in alternating rounds of one run.

    A figure is the ratio of both sides' times in the same round, as median [quartiles]; above 1, tfdist is faster.
    Absolute times depend on the machine and its load; ratios depend on them much less.
    """
