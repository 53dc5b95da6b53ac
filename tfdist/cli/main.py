"""The command ``tfdist``: a table of subcommands, each of which loads its own file when it is called."""

import importlib
from typing import Any

import click

import tfdist
from tfdist.errors import ConfigError, TfdistError

# name -> what the overview says; the command is `command` in tfdist/cli/<name>.py
COMMANDS = {
    "run": "Start a script on N local workers; end all when one fails, or start them again.",
    "resize": "Change the number of workers of a job that runs.",
    "health": "Say whether the jobs on this machine go on: the health check of the images.",
    "chaos": "Run a job with faults on purpose, and see how it recovers.",
    "verify": "Compare every Keras feature on every strategy with one device.",
    "doctor": "Say what this machine has, what is missing, and what cures it.",
    "build": "Build Horovod, or ops of our own, for the TensorFlow that is installed; kept for the next time.",
    "data": "Write examples as TFRecord files that are read shuffled, divided and resumed exactly.",
    "tune": "Find the largest batch that fits, and the one that pays.",
    "bench": "Measure speed beside the peers.",
}


class LazyGroup(click.Group):
    """A click group that imports a subcommand when it is called; the overview imports none.

    Example:
        >>> LazyGroup("tfdist").list_commands(click.Context(main))[0]
        'run'
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"tfdist.cli.{cmd_name}").command
        assert isinstance(command, click.Command), f"tfdist.cli.{cmd_name}.command is no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, so that it costs no import."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of tfdist ends as its message, with exit code 2 when the request was wrong.

        Ctrl-C ends with 130, as in a shell.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(130)
        except TfdistError as error:
            raise (_Refused if isinstance(error, ConfigError) else click.ClickException)(str(error)) from error


class _Refused(click.ClickException):
    exit_code = 2


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tfdist.__version__, prog_name="tfdist", message="%(prog)s %(version)s")
def main() -> None:
    """Keras training, right on every TensorFlow distribution strategy."""
