"""`tfdist data split`: parse, call `tfdist.federated`, show the progress, print the size of each client's data."""

from typing import Any

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.data.data_options import Reading, follow_option, storage_option
from tfdist.errors import ConfigError


@click.command(
    "split",
    cls=Command,
    groups={
        "Who gets what": ("by", "iid", "dirichlet", "clients", "label", "minimum", "seed"),
        "Where it is": ("storage_options", "follow_symlinks"),
    },
    examples={
        "tfdist data split data clients --by author": "a client for each author",
        "tfdist data split data clients --iid 100": "at random, alike",
        "tfdist data split data clients --dirichlet 0.3 --clients 30": "unlike labels",
        "tfdist federated simulate app.py": 'client_data="clients"',
    },
    epilog="Exit code: 0 when INTO is there, 1 when it could not be made, 2 when the request makes no sense.",
    page="federated",
)
@click.argument("directory")
@click.argument("into")
@click.option("--by", metavar="FEATURE", help="A text or an integer per example; each value becomes a client.")
@click.option("--iid", type=click.IntRange(1), metavar="N", help="N clients with about equal, random parts.")
@click.option(
    "--dirichlet",
    type=click.FloatRange(0, min_open=True),
    metavar="ALPHA",
    help="Uneven labels over --clients: 0.1 gives each a few, 100 all.",
)
@click.option("--clients", type=click.IntRange(1), metavar="N", help="Number of clients, for --dirichlet.")
@click.option("--label", metavar="FEATURE", help="Feature for --dirichlet; by default the label.")
@click.option(
    "--minimum", type=click.IntRange(1), metavar="N", help="Fewest examples of a client, for --dirichlet; 1 by default."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the division.")
@storage_option
@follow_option
def command(
    directory: str,
    into: str,
    by: str | None,
    iid: int | None,
    dirichlet: float | None,
    clients: int | None,
    label: str | None,
    minimum: int | None,
    **options: Any,
) -> None:
    """Divide the examples of DIRECTORY among clients: INTO gets a directory of examples for each.

    Every example goes to one client, with its bytes as they are. INTO is local, and appears when it is complete.
    `tfdist.federated.App` takes it as client_data; its sub-folders are the clients' names.
    """
    from tfdist.federated.clients.directory_split import split_directory

    given = [name for name, value in (("--by", by), ("--iid", iid), ("--dirichlet", dirichlet)) if value is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{' and '.join(given)} were given; they exclude each other."
            if given
            else "nothing says how to divide: pass --by FEATURE, --iid N, or --dirichlet ALPHA --clients N.",
            name="--by",
            received=given,
        )
    own = {"--clients": clients, "--label": label, "--minimum": minimum}
    beside = [name for name, value in own.items() if value is not None]
    if dirichlet is None and beside:
        raise ConfigError(
            f"{beside[0]} belongs to --dirichlet ALPHA; {given[0]} does not use it.", name=beside[0], received=given[0]
        )
    if dirichlet is not None and clients is None:
        raise ConfigError("--dirichlet needs --clients N.", name="--clients", received=None)
    with unwinding(), Reading("copying") as watch:
        found = split_directory(
            directory,
            into,
            by=by,
            clients=clients or iid,
            alpha=dirichlet,
            label=label,
            minimum=minimum or 1,
            progress=watch.show,
            **options,
        )
    sizes = sorted(found.values())
    click.echo(
        f"{into} has {len(found):,} clients with {sum(sizes):,} examples: {sizes[0]:,} to {sizes[-1]:,} each, "
        f"{sizes[len(sizes) // 2]:,} in the middle."
    )
