"""`tfdist federated keys`: make keys and the list of clients."""

from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.federated.federation_options import require_cryptography
from tfdist.errors import ConfigError
from tfdist.validation import counted


@click.command(
    "keys",
    cls=Command,
    examples={
        "tfdist federated keys keys --client berlin --client paris": "all keys in one place",
        "tfdist federated keys keys --own berlin": "at the client: its key stays there",
        "tfdist federated keys keys --add berlin=5f1c...": "at the server: what --own has printed",
    },
    epilog="Exit code: 0 when the files are there, 2 when the request makes no sense.",
    page="federated-running",
)
@click.option("--client", "clients", multiple=True, metavar="NAME", help="Make a key for this client, and list it.")
@click.option("--own", metavar="NAME", help="Make a key alone, and print its public part.")
@click.option("--add", "added", multiple=True, metavar="NAME=HEX", help="List a client by its public key.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def command(folder: Path, clients: tuple[str, ...], own: str | None, added: tuple[str, ...]) -> None:
    """Make the keys of a server and its clients in FOLDER; existing keys are kept.

    server.key and NAME.key are secret. The list, federation.json, is public: it has the fingerprint of the server's
    certificate and the public key of each client. Give each client its key, unless it has made its own, and the list,
    by a channel that you trust.
    """
    require_cryptography()
    from tfdist.federated.transport import federation_keys

    if own is not None:
        if clients or added:
            raise ConfigError(
                "--own makes one key at its client; --client and --add are for the server.", name="--own", received=own
            )
        key = federation_keys.make_client_key(folder, own)
        click.echo(
            f"wrote {folder / own}.key. At the server: tfdist federated keys FOLDER --add {own}={key.public.hex()}"
        )
        return
    known = {name: federation_keys.make_client_key(folder, name).public for name in clients}
    known |= dict(map(_named_key, added))
    federation = federation_keys.make_federation(folder, known)
    click.echo(f"{folder / federation_keys.LIST_FILE}: {counted(len(federation.clients), 'client')}, certificate")
    click.echo(f"  {federation.fingerprint}")


def _named_key(text: str) -> tuple[str, bytes]:
    name, _, digits = text.partition("=")
    try:
        return name, bytes.fromhex(digits)
    except ValueError:
        raise ConfigError(
            f"--add is {text!r}; it must be NAME=HEX, as `tfdist federated keys --own NAME` prints it.",
            name="--add",
            received=text,
        ) from None
