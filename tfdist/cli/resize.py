"""``tfdist resize``: parse, ask the job, print."""

import os

import click

from tfdist.launch import jobs
from tfdist.validation import integer, number

HELP = """Change the number of workers of a job that runs, and wait until all of them step.

JOB is what `tfdist run` printed when it started, or its beginning. The job must have been started with --min-workers or
--max-workers, and train with tfdist.callbacks.BackupAndRestore: all workers stop before the same step and save, and N
workers go on from there. Nothing is repeated, and no example is seen twice or left out.

\b
Usage:
  tfdist run -n 2 --min-workers 1 --max-workers 4 train.py      prints, for instance: job 3f9ac1d2...
  tfdist resize 3f9a 4                                          four workers
  tfdist resize 3f9a 1                                          one

\b
While the workers compile, validate or run callbacks, the change waits for their next step. Without this command,
SIGUSR1 to the process of `tfdist run` adds a worker and SIGUSR2 takes one away.

\b
Exit code:
  0  N workers step
  1  the job refused, or ended, or was not done in time
  2  there is no such job
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 130})
@click.option(
    "--timeout-seconds", type=float, default=600.0, show_default=True, metavar="S", help="How long to wait for it."
)
@click.argument("job")
@click.argument("workers", type=int, metavar="N")
def command(*, job: str, workers: int, timeout_seconds: float) -> None:
    """Change the number of workers of a job."""
    integer("N", workers, minimum=1)
    number("--timeout-seconds", timeout_seconds, above=0)
    click.echo(jobs.ask(os.environ, job, workers, timeout_seconds=timeout_seconds))
