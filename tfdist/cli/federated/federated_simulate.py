"""`tfdist federated simulate`: run an application in this process, and show its rounds."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Watch, unwinding
from tfdist.errors import ConfigError

if TYPE_CHECKING:
    from tfdist.federated import App, RoundRecord


@click.command(
    "simulate",
    cls=Command,
    groups={
        "What runs": ("rounds", "clients", "seed"),
        "Where it goes": ("output", "resume", "tensorboard"),
    },
    examples={
        "tfdist recipes copy hospitals": "an app.py to begin with",
        "tfdist federated simulate hospitals/train.py": "",
        "tfdist federated simulate app.py --clients 1000 --rounds 50": "client_data(name) is a function",
        "tfdist federated simulate app.py --rounds 100 --resume": "50 more, or after a kill",
    },
    epilog="Exit code: 0 when all rounds are done, 1 when they cannot be, 2 when the request makes no sense.",
    page="federated",
)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="Of the run.")
@click.option("--clients", type=click.IntRange(1), help="How many; by default all that client_data has.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights, clients and orders.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs", "federated"),
    show_default=True,
    metavar="FOLDER",
    help="For rounds.jsonl, rounds.png, model.keras and checkpoints.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in the folder.")
@click.option("--tensorboard", is_flag=True, help="Write the metrics for TensorBoard as well.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="APP.PY")
def command(
    file: Path, rounds: int, clients: int | None, seed: int, output: Path, resume: bool, tensorboard: bool
) -> None:
    """Train a federated application in this process.

    APP.PY has a variable `app`, a tfdist.federated.App: make_model, client_data and an algorithm. The rounds are those
    of a real run: the clients train one after another, with one model and one graph.
    """
    import keras

    from tfdist.federated import simulate
    from tfdist.federated.app_file import load_app
    from tfdist.federated.round_history import PICTURE, ROUNDS, draw, shown, tensorboard_writer

    keras.utils.set_random_seed(seed)
    app = load_app(file)
    if clients is not None:
        app = _with_clients(app, clients)
    write = tensorboard_writer(output / "tensorboard") if tensorboard else None
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with unwinding(), Watch(*columns) as watch:
        bar = watch.progress.add_task("rounds", total=rounds)

        def on_round(record: "RoundRecord") -> None:
            click.echo(shown(record))
            watch.progress.update(bar, completed=record.round + 1)
            if write is not None:
                write(record)

        result = simulate(app, rounds=rounds, seed=seed, folder=output, resume=resume, on_round=on_round)
    result.model.save(output / "model.keras")
    try:
        draw(result.rounds, output / PICTURE)
    except ImportError as error:
        click.echo(f"no picture: {error}", err=True)
    click.echo(f"wrote {output}: {ROUNDS}, model.keras")


def _with_clients(app: "App", count: int) -> "App":
    if app.clients is None and callable(app.client_data):
        return dataclasses.replace(app, clients=count)
    if isinstance(app.clients, int):
        return dataclasses.replace(app, clients=count)
    names = app.names()
    if count > len(names):
        raise ConfigError(
            f"--clients is {count}, and client_data has {len(names)} clients. Leave it out to take all.",
            name="--clients",
            received=count,
        )
    return dataclasses.replace(app, clients=names[:count])
