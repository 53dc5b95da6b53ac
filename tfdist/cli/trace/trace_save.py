"""``tfdist trace save``: find the job, read its rings, write."""

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.written_files import OutputFile


@click.command(
    cls=Command,
    examples={
        "tfdist trace save -o trace.json": "of the only job that runs here",
        "tfdist trace save 3f9a -o trace.json": "of the job whose id begins so",
        "tfdist run --trace trace.json -n 2 train.py": "of a job, at its end",
    },
    epilog="Exit code: 0 when it is written, 1 when nothing was recorded, 2 when there is no such job.",
    page="monitoring-stacks",
)
@click.option("-o", "--output", metavar="FILE", type=OutputFile(), required=True, help="Where it is written.")
@click.argument("job", default="")
def command(*, output: str, job: str) -> None:
    """Write the last 2,048 steps of each worker of JOB, which was started with `tfdist run --monitor`."""
    from tfdist.cluster.job_files import steps_folder
    from tfdist.monitor.recording import chrome_trace
    from tfdist.monitor.verdict.row_collection import read_folder
    from tfdist.monitor.watch import observing

    name, folder = observing.found(job)
    start = observing.newest_start(folder)
    rows = {} if start is None else read_folder(steps_folder(folder, start))
    if not rows:
        raise click.ClickException(f"job {name} has recorded no step; start it with `tfdist run --monitor`.")
    chrome_trace.write(output, chrome_trace.trace(rows))
    click.echo(f"{output}: {sum(map(len, rows.values()))} steps of {len(rows)} workers")
