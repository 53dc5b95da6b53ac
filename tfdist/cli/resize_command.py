"""``tfdist resize``: parse, send the request to the job, print the result."""

import os

import click

from tfdist.cli.common.command import Command
from tfdist.jobs.agent import running_jobs
from tfdist.validation import integer, number


@click.command(
    cls=Command,
    examples={
        "tfdist run -n 2 --min-workers 1 --max-workers 4 train.py": "prints, for instance: job 3f9ac1d2...",
        "tfdist resize 3f9a 4": "four workers",
        "tfdist resize 3f9a 1": "one",
    },
    epilog="Exit code: 0 when N workers step, 1 when the job refused, ended or took too long, 2 when there is none.",
    page="run",
)
@click.option("--timeout-seconds", type=float, default=600.0, metavar="S", help="How long to wait for the change.")
@click.argument("job")
@click.argument("workers", type=int, metavar="N")
def command(*, job: str, workers: int, timeout_seconds: float) -> None:
    """Change the number of workers of a job that runs, and wait until all of them step.

    JOB is what `tfdist run` printed when it started, or its beginning. The job must have been started with
    --min-workers or --max-workers, and train with tfdist.callbacks.BackupAndRestore: all workers stop before the same
    step and save, and N workers continue from there. Nothing is repeated, and no example is seen twice or left out.
    """
    integer("N", workers, minimum=1)
    number("--timeout-seconds", timeout_seconds, above=0)
    click.echo(running_jobs.ask(os.environ, job, workers, timeout_seconds=timeout_seconds))
