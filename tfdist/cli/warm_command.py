"""``tfdist warm``: parse, start or stop the process, print the result."""

import os
import sys

import click

from tfdist.cli.common.command import Command
from tfdist.errors import ConfigError
from tfdist.jobs.placement.warm_workers import warm_environment
from tfdist.processes import warm_client
from tfdist.processes.surroundings import differences, identity
from tfdist.processes.warm_client import WarmProcess
from tfdist.validation import as_seconds


@click.command(
    cls=Command,
    examples={
        "tfdist warm": "start it, unless it runs",
        "tfdist run -n 2 train.py": "its workers need not import TensorFlow",
        "tfdist warm --idle 8h": "for a day of work",
        "tfdist warm --stop": "end it; jobs continue",
    },
    epilog="Exit code: 0 when it runs or was stopped, 1 when it cannot start, or --status finds none.",
    page="run-warm",
)
@click.option("--idle", default="30m", metavar="TIME", help="The process ends after this time without a job.")
@click.option("--status", is_flag=True, help="List warm processes, and why one does not fit.")
@click.option("--stop", is_flag=True, help="End all your warm processes.")
@click.pass_context
def command(context: click.Context, /, *, idle: str, status: bool, stop: bool) -> None:
    """Keep a background process that has imported TensorFlow, Keras and tfdist.

    `tfdist run` on this machine forks its workers from the process, and says so. Workers run as they would otherwise.
    The process is used only while the interpreter, the packages, the variables that libraries read and the like are
    those with which it was started.
    """
    seconds = as_seconds(idle, name="--idle", unit="s")
    if sys.platform != "linux":
        raise ConfigError(f"this system is {sys.platform}; workers can be forked from a process on Linux only.")
    if status and stop:
        raise click.UsageError("--status and --stop are given. Leave one of the two out.")
    environment = warm_environment(os.environ)
    if status:
        found = list(warm_client.running(os.environ))
        for one in found:
            click.echo(_described(one, differences(identity(environment), one.identity)))
        if not found:
            click.echo("No warm process runs. Start it: tfdist warm")
        context.exit(0 if found else 1)
    if stop:
        for one in warm_client.running(os.environ):
            warm_client.stop(one)
            click.echo(f"warm process {one.pid} ends")
        return
    one, is_new = warm_client.start(os.environ, environment, idle_seconds=seconds)
    click.echo(f"warm process {one.pid} {'is ready' if is_new else 'runs already'}; {_until(one)}")


def _described(one: WarmProcess, other: list[str]) -> str:
    fits = f"does not fit here: {', '.join(other)}" if other else "fits here"
    text = f"warm process {one.pid}, started {_ago(one.age_seconds)} ago, {one.jobs} jobs; {_until(one)}; "
    return text + (f"is used no more: {one.refused}" if one.refused else fits)


def _until(one: WarmProcess) -> str:
    return f"ends after {_ago(one.idle_seconds)} without a job"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
