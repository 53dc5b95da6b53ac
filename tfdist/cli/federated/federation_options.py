"""Shared parts of `tfdist federated simulate`, `server` and `client`."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfdist.errors import MissingDependencyError
from tfdist.jobs.output.tf_log_filter import hide_noise

if TYPE_CHECKING:
    from tfdist.federated import App, RoundRecord, SecureSums

rounds_option = click.option("--rounds", type=click.IntRange(1), default=10, help="Number of rounds.")
seed_option = click.option("--seed", type=click.IntRange(0), default=0, help="Seed of weights, clients and orders.")
output_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs", "federated"),
    metavar="FOLDER",
    help="Folder of rounds.jsonl, rounds.png, model.keras and checkpoints.",
)
resume_option = click.option("--resume", is_flag=True, help="Resume the run in the folder.")
app_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="APP.PY")
secure_option = click.option(
    "--secure", is_flag=True, help="Secure aggregation; on both sides. Implied if APP.PY has secure=SecureSums(...)."
)


export_option = click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="NAME[:WHERE]",
    help="Curves of the rounds: tensorboard:DIR, prometheus:PORT, mlflow:URI.",
)


@contextmanager
def told_rounds(
    texts: Sequence[str], app: "App", folder: Path, *, rounds: int, seed: int
) -> "Iterator[Callable[[RoundRecord], None]]":
    """Yield a function that prints records of rounds and passes them to the exporters of `--export`, within a block."""
    from tfdist.federated.round_exporters import RunAbout, exported, targets_of
    from tfdist.federated.round_history import shown
    from tfdist.federated.session_files import run_id

    if not texts:
        yield lambda record: click.echo(shown(record))
        return
    targets = targets_of(texts, option="--export")
    parameters = {"algorithm": repr(app.algorithm), "participation": repr(app.participation), "seed": str(seed)}
    about = RunAbout(run_id(folder), {**parameters, "aggregator": type(app.aggregator).__name__, "rounds": str(rounds)})
    with exported(targets, about, warn=lambda text: click.echo(text, err=True)) as put:

        def tell(record: "RoundRecord") -> None:
            click.echo(shown(record))
            put(record)

        yield tell


def hide_noise_of_tensorflow() -> None:
    """Hide known noise of TensorFlow; lines and progress of Python still go to standard error itself, as to a terminal.

    A program that has a standard error of its own, such as a test, keeps it.
    """
    original = sys.__stderr__
    if original is None or sys.stderr is not original:
        return
    own = os.dup(original.fileno())
    hide_noise()
    sys.stderr = open(own, "w", buffering=1, encoding=original.encoding, errors="backslashreplace")  # noqa: SIM115


def require_cryptography() -> None:
    """Require the package for encryption."""
    if importlib.util.find_spec("cryptography") is None:
        raise MissingDependencyError(
            "the package cryptography is not installed, which connections between hosts need. Run: pip install "
            "'tfdist[federated]'",
            name="cryptography",
        )


def sums_of(app: "App", secure: bool) -> "SecureSums | None":
    """Return the application's settings of secure aggregation, or the defaults if ``secure`` is True."""
    from tfdist.federated import SecureSums

    return app.secure or (SecureSums() if secure else None)


def show_end(records: "Sequence[RoundRecord]", output: Path) -> None:
    """Draw the curves of a run that has ended, and print the paths of its files."""
    from tfdist.federated.round_history import PICTURE, ROUNDS, draw

    try:
        draw(records, output / PICTURE)
    except ImportError as error:
        click.echo(f"no picture: {error}", err=True)
    click.echo(f"wrote {output}: {ROUNDS}, model.keras")
