"""`tfdist federated server`: drive the rounds of a run over real clients, and show them."""

import time
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.federated.federation_options import (
    app_argument,
    export_option,
    hide_noise_of_tensorflow,
    output_option,
    require_cryptography,
    resume_option,
    rounds_option,
    secure_option,
    seed_option,
    show_end,
    sums_of,
    told_rounds,
)


@click.command(
    "server",
    cls=Command,
    groups={
        "What runs": ("rounds", "seed", "secure"),
        "Who takes part": ("listen", "keys"),
        "Where it goes": ("output", "resume", "exports"),
    },
    examples={
        "tfdist federated keys keys --client berlin --client paris": "first",
        "tfdist federated server --rounds 50 app.py": "on this machine",
        "tfdist federated server --listen 0.0.0.0:7443 app.py": "for clients on others",
        "tfdist federated server --listen 0.0.0.0:7443 --resume app.py": "after a kill",
    },
    epilog="Exit code: 0 when all rounds are done, 1 when they cannot be, 2 when the request makes no sense.",
    page="federated-running",
)
@rounds_option
@seed_option
@secure_option
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:7443", help="Address for clients.")
@click.option(
    "--keys",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("keys"),
    metavar="FOLDER",
    help="Folder with server.key and federation.json.",
)
@output_option
@resume_option
@export_option
@app_argument
def command(
    file: Path,
    rounds: int,
    seed: int,
    secure: bool,
    listen: str,
    keys: Path,
    output: Path,
    resume: bool,
    exports: tuple[str, ...],
) -> None:
    """Drive the rounds of APP.PY's `app`; clients connect, train on their own data, and send the changes.

    A round begins once all clients are there, or at the deadline. A server that was killed resumes with --resume, and
    reaches the weights of a run that was never killed. Clients continue running, and connect again.
    """
    require_cryptography()
    hide_noise_of_tensorflow()
    import keras

    from tfdist.cluster.cluster_values import split_address
    from tfdist.federated.app_file import load_app
    from tfdist.federated.round_history import ROUNDS, read_rounds
    from tfdist.federated.running.federation_run import serve
    from tfdist.federated.transport import federation_keys

    host, port = split_address("--listen", listen)
    keras.utils.set_random_seed(seed)
    app = load_app(file)
    with unwinding(), told_rounds(exports, app, output, rounds=rounds, seed=seed) as tell:
        serve(
            app,
            federation_keys.read_server_key(keys / federation_keys.SERVER_FILE),
            federation_keys.read_federation(keys / federation_keys.LIST_FILE),
            host=host,
            port=port,
            rounds=rounds,
            folder=output,
            seed=seed,
            resume=resume,
            sums=sums_of(app, secure),
            told=lambda line: click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True),
            on_round=tell,
        )
    show_end(read_rounds(output / ROUNDS), output)
