"""``tfdist agent``, which lets this host join a job whose launcher cannot start processes here."""

import os
import socket
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cluster import job_key
from tfdist.cluster.cluster_values import split_address
from tfdist.variables import JOB_KEY


@click.command(
    cls=Command,
    examples={
        "tfdist agent 10.0.0.1:7000 --key-file job.key": "join a job",
        "tfdist agent 10.0.0.1:7000 --key-file job.key --name a": "as its host a",
        "tfdist run --engine agent --hosts a,b --key-file job.key train.py": "its launcher",
    },
    epilog="Exit code: 0 when the job has ended, whatever its result; 1 when it could not be joined.",
    page="cluster",
)
@click.option("--name", metavar="NAME", help="Name of this host in --hosts of the job.  [default: its own]")
@click.option(
    "--key-file",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="File with the key of the job.  [default: TFDIST_JOB_KEY]",
)
@click.option(
    "--wait-seconds",
    type=click.FloatRange(min=0),
    default=600.0,
    metavar="S",
    help="How long to try if no launcher answers.",
)
@click.argument("address")
@click.pass_context
def command(
    context: click.Context, *, name: str | None, key_file: str | None, wait_seconds: float, address: str
) -> None:
    """Join the job whose launcher listens at ADDRESS, run its workers here, and end with it.

    ADDRESS is host:port, as in `tfdist run --engine agent --rendezvous`. This host needs the same version of tfdist,
    and the folder of the script at the same path.
    """
    from tfdist.jobs.connecting.tcp_joining import Ticket
    from tfdist.jobs.launchers import joined_agent

    addresses = tuple(address.split(","))
    for one in addresses:
        split_address("ADDRESS", one)
    key = job_key.from_environment(os.environ) if key_file is None else job_key.from_file(Path(key_file))
    if key is None:
        raise click.UsageError(f"the key of the job is missing: --key-file PATH, or {JOB_KEY.name}.")
    ticket = Ticket(addresses=addresses, name=name or socket.gethostname(), key=key)
    context.exit(joined_agent.serve(ticket, wait_seconds=wait_seconds, say=lambda text: click.echo(text, err=True)))
