"""`tfdist federated simulate`: run an application on this machine, and show its rounds."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Watch, unwinding
from tfdist.cli.federated.federation_options import (
    app_argument,
    export_option,
    hide_noise_of_tensorflow,
    output_option,
    resume_option,
    rounds_option,
    seed_option,
    show_end,
    told_rounds,
)
from tfdist.errors import ConfigError

if TYPE_CHECKING:
    from tfdist.federated import App, RoundRecord


@click.command(
    "simulate",
    cls=Command,
    groups={
        "What runs": ("rounds", "clients", "seed", "processes", "liars"),
        "Where it goes": ("output", "resume", "exports"),
    },
    examples={
        "tfdist recipes copy hospitals": "an app.py to begin with",
        "tfdist federated simulate hospitals/train.py": "",
        "tfdist federated simulate app.py --clients 1000 --rounds 50": "client_data(name) is a function",
        "tfdist federated simulate app.py --liars 0.2:alie": "a fifth of the clients lies",
        "tfdist federated simulate app.py --rounds 100 --resume": "50 more, or after a kill",
        "tfdist federated simulate app.py --export tensorboard:logs": "",
    },
    epilog="Exit code: 0 when all rounds are done, 1 when they cannot be, 2 when the request makes no sense.",
    page="federated",
)
@rounds_option
@click.option("--clients", type=click.IntRange(1), help="Number of clients; by default all of client_data.")
@seed_option
@click.option(
    "--liars",
    metavar="PART:ATTACK",
    help="Have a part of the clients lie: sign-flip, alie, ipm, mimic or label-flip; :STRENGTH may follow.",
)
@click.option("--processes", type=click.IntRange(1), default=1, help="Processes that train clients at the same time.")
@output_option
@resume_option
@export_option
@app_argument
def command(
    file: Path,
    rounds: int,
    clients: int | None,
    seed: int,
    liars: str | None,
    processes: int,
    output: Path,
    resume: bool,
    exports: tuple[str, ...],
) -> None:
    """Train a federated application on this machine.

    APP.PY has a variable `app`, a tfdist.federated.App: make_model, client_data and an algorithm. The rounds are those
    of a real run: the clients of a process train one after another, with one model and one graph.
    """
    from tfdist.federated.app_file import load_app, require_app

    require_app(file)  # before the seconds that TensorFlow's import takes
    hide_noise_of_tensorflow()
    import keras

    from tfdist.federated import simulate
    from tfdist.federated.robust.lying_clients import read

    keras.utils.set_random_seed(seed)
    lying = None if liars is None else read(liars)
    app = load_app(file)
    if clients is not None:
        app = _with_clients(app, clients)
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with unwinding(), Watch(*columns) as watch, told_rounds(exports, app, output, rounds=rounds, seed=seed) as tell:
        bar = watch.progress.add_task("rounds", total=rounds)

        def on_round(record: "RoundRecord") -> None:
            tell(record)
            watch.progress.update(bar, completed=record.round + 1)

        result = simulate(
            app,
            rounds=rounds,
            seed=seed,
            folder=output,
            resume=resume,
            liars=lying,
            processes=processes,
            on_round=on_round,
        )
    result.model.save(output / "model.keras")
    show_end(result.rounds, output)


def _with_clients(app: "App", count: int) -> "App":
    if isinstance(app.clients, int) or (app.clients is None and callable(app.client_data)):
        return dataclasses.replace(app, clients=count)
    names = app.names()
    if count > len(names):
        raise ConfigError(
            f"--clients is {count}, and client_data has {len(names)} clients. Leave it out to take all.",
            name="--clients",
            received=count,
        )
    return dataclasses.replace(app, clients=names[:count])
