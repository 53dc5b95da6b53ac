"""The command ``tfdist`` and the table of its subcommands. Each subcommand loads its file when it is called."""

import errno
import os
from typing import Any

import click

import tfdist
from tfdist.cli.common.command import SETTINGS, LazyGroup
from tfdist.errors import ConfigError, TfdistError

# name -> line of the overview; the command is `command` in tfdist/cli/<name>_command.py, or in the sub-package <name>
COMMANDS = {
    "run": "Start a script on N workers; when one fails, end all or restart them.",
    "warm": "Keep TensorFlow imported in a process, from which jobs start without its import.",
    "agent": "Let this host join a job whose launcher cannot start anything here.",
    "resize": "Change the number of workers of a job that runs.",
    "watch": "Show what a job does: parts of steps, loss, memory, faults, and what limits it.",
    "export": "Export a job's figures to TensorBoard, Prometheus and MLflow.",
    "stacks": "Show the Python stacks of a job's processes, and the collectives in which they wait.",
    "trace": "Write steps of all workers as a chrome trace; put several into one.",
    "health": "Check that the jobs on this machine make progress: the health check of the images.",
    "chaos": "Run a job with faults on purpose, and see how it recovers.",
    "verify": "Compare a script of yours, or every Keras feature, under a strategy with one device.",
    "doctor": "Say what this machine has, what is missing, and what cures it.",
    "build": "Build Horovod, or tfdist's own ops, for the installed TensorFlow.",
    "data": "Write examples as TFRecord files that are read shuffled, divided and resumed exactly.",
    "federated": "Train a model over clients that keep their data.",
    "plan": "Predict time and price of a training by its number of workers.",
    "parallel": "Plan how a model is divided over processes.",
    "search": "Find the best hyper-parameters: ASHA, Hyperband, population-based training.",
    "tune": "Find the largest batch that fits, and the fastest one.",
    "bench": "Compare the speed with that of the peers.",
    "recipes": "List training scripts that run as they are, and copy one to start from.",
    "docs": "Show a page of documentation.",
    "cache": "List or remove the files that are kept between runs.",
}
EXAMPLES = {
    "tfdist doctor": "is this machine ready?",
    "tfdist recipes copy digits": "a script to begin with",
    "tfdist run -n 2 digits/train.py": "two workers run it",
    "tfdist run --help": "its options; the rest: tfdist docs run",
}


_NO_ACCESS = "Name another file or folder, or give this user access."
_NO_ROOM = "Make room, or name a folder on another disk; TMPDIR names the one of temporary files."
# Errors that say nothing of the code, which a traceback would show, but of the machine: what to do about each.
_OF_THE_MACHINE = {
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: _NO_ACCESS,
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EMFILE: "Raise the limit of open files: ulimit -n 65536; or start fewer workers.",
}


class Main(LazyGroup):
    """The main command, with subcommands, and the exit codes of errors."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line."""
        _open_standard_streams()
        return super().main(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. A wrong request exits with 2, any other error with 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(130)
        except TfdistError as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)  # without [Errno 2]
            raise (_Refused if isinstance(error, ConfigError) else click.ClickException)(text) from error
        except OSError as error:
            if error.errno not in _OF_THE_MACHINE:
                raise
            place = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{place}{error.strerror}. {_OF_THE_MACHINE[error.errno]}") from error


def _open_standard_streams() -> None:
    """Open closed standard streams; otherwise a file of ours would get such a number, and workers would inherit it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number


class _Refused(click.ClickException):
    exit_code = 2


@click.group(
    cls=Main, examples=EXAMPLES, package="tfdist.cli", modules="{}_command", table=COMMANDS, context_settings=SETTINGS
)
@click.version_option(tfdist.__version__, prog_name="tfdist", message="%(prog)s %(version)s")
def main() -> None:
    """Keras training, right on every TensorFlow distribution strategy."""
