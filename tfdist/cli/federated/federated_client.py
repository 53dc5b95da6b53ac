"""`tfdist federated client`: train on this machine's data for a server."""

import sys
import time
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.federated.federation_options import (
    app_argument,
    hide_noise_of_tensorflow,
    require_cryptography,
    secure_option,
    sums_of,
)


@click.command(
    "client",
    cls=Command,
    examples={
        "tfdist federated client --server fed.example.org:7443 --key keys/berlin.key app.py": "",
        "tfdist federated client --server fed.example.org:7443 --key keys/berlin.key --secure app.py": "",
        "tfdist federated client --server 127.0.0.1:7443 --key keys/berlin.key --wait-seconds 60 app.py": "",
    },
    epilog="Exit code: 0 when the server has ended the run, 1 when it or this client failed, 2 for a wrong request.",
    page="federated-running",
)
@click.option(
    "--server", metavar="HOST:PORT", required=True, help="Server to connect to; nothing connects to this host."
)
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", required=True, help="This client's NAME.key.")
@click.option(
    "--federation", type=click.Path(path_type=Path), metavar="FILE", help="List of keys; by default beside the key."
)
@secure_option
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder for this client's state; runs/federated-NAME by default.",
)
@click.option("--wait-seconds", type=click.FloatRange(0), default=600.0, help="How long to wait for a server.")
@app_argument
def command(
    file: Path, server: str, key: Path, federation: Path | None, secure: bool, state: Path | None, wait_seconds: float
) -> None:
    """Train APP.PY's `app` on the data of one client, whose name is in the key, until the server ends the run.

    The server must have the certificate of the list. The client restores lost connections and repeats lost answers, so
    nothing is trained twice.
    """
    require_cryptography()
    hide_noise_of_tensorflow()
    from tfdist.cluster.cluster_values import split_address
    from tfdist.federated.app_file import load_app
    from tfdist.federated.running.federation_run import take_part
    from tfdist.federated.transport import federation_keys

    host, port = split_address("--server", server)
    own = federation_keys.read_client_key(key)
    listed = federation_keys.read_federation(federation or key.parent / federation_keys.LIST_FILE)
    app = load_app(file)
    with unwinding():
        error = take_part(
            app,
            own,
            listed,
            host=host,
            port=port,
            folder=state or Path("runs", f"federated-{own.name}"),
            sums=sums_of(app, secure),
            wait_seconds=wait_seconds,
            told=lambda line: click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True),
        )
    if error:
        click.echo(f"the server ended the run: {error}", err=True)
        sys.exit(1)
