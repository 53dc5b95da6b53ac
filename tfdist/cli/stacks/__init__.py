"""``tfdist stacks``: find the job, request the stacks of its processes, print them."""

import json
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.validation import number


@click.command(
    cls=Command,
    examples={
        "tfdist stacks": "of the only job that runs here",
        "tfdist stacks 3f9a": "of the job whose id begins so",
        "tfdist stacks --threads 3f9a": "all Python threads of each process",
    },
    epilog="Exit code: 0 when all have answered, 1 when one has not, 2 when there is no such job.",
    page="monitoring-stacks",
)
@click.option("--threads", is_flag=True, help="Show all Python threads, not only the main ones.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.option("--seconds", type=float, default=5.0, metavar="S", help="How long to wait for answers.")
@click.argument("job", default="")
@click.pass_context
def command(context: click.Context, *, threads: bool, as_json: bool, seconds: float, job: str) -> None:
    """Show the Python stacks of the processes of JOB, and the collectives in which they wait for each other.

    py-spy reads the stacks if it is installed; otherwise the processes write them by faulthandler. None is ended.
    """
    number("--seconds", seconds, above=0, maximum=3600)
    from tfdist.cluster.job_files import processes_file
    from tfdist.monitor.stacks.stack_requests import Target, apart, ask, lines
    from tfdist.monitor.watch import observing

    name, folder = observing.found(job)
    try:
        made = json.loads(processes_file(folder).read_text(encoding="utf-8"))
        targets = [Target(name=one["task"], pid=int(one["pid"]), file=Path(one["file"])) for one in made]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"job {name} does not list its processes; it is starting or ending, or was started with --hosts or "
            "--engine. On the host of a worker: py-spy dump --pid PID"
        ) from error
    found = ask(targets, seconds=seconds)
    different = apart({one.name: one.waits for one in found})
    if as_json:
        click.echo(json.dumps({"job": name, "apart": different, "processes": [one.as_json() for one in found]}))
    else:
        told = [line for one in found for line in lines(one, threads=threads)]
        for line in ([different] if different else []) + told:
            click.echo(line)
    context.exit(0 if all(one.threads for one in found) else 1)
