"""``tfdist health``: report the jobs of this machine that make no progress."""

import time
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.jobs.agent import running_jobs
from tfdist.validation import counted, number


@click.command(
    cls=Command,
    examples={
        "tfdist health": "on this machine",
        "docker exec NAME tfdist health": "in a container",
        'HEALTHCHECK CMD ["tfdist", "health"]': "in a Dockerfile; in Kubernetes an exec probe",
    },
    epilog="Exit code: 0 when all workers make progress, or no job of this user runs here; 1 when one does not.",
    page="run",
)
@click.option(
    "--stall-seconds",
    type=float,
    default=1800.0,
    metavar="S",
    help="How long an activity of a worker may take: a step, compiling, saving, a callback.",
)
def command(*, stall_seconds: float) -> None:
    """Check that the jobs of `tfdist run` on this machine make progress: the health check of the container images.

    Every worker that trains through tfdist reports its activity in a table in memory. A worker whose activity has not
    changed for --stall-seconds is named. The check takes a fraction of a second, and loads no TensorFlow.
    """
    number("--stall-seconds", stall_seconds, above=0)
    pages = running_jobs.worker_pages()
    found = running_jobs.stalled_workers(pages, now=time.monotonic(), stall_seconds=stall_seconds)
    for sentence in found:
        click.echo(sentence)
    if found:
        raise SystemExit(1)
    jobs, workers = {Path(path).parent for path in pages}, sum(len(said) for said in pages.values())
    click.echo(f"{counted(len(jobs), 'job')}, {counted(workers, 'worker')}, none stands still")
