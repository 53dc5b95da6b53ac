"""`tfdist trace`: the steps of all workers as chrome traces."""

import json
from pathlib import Path

import click

from tfdist.cli.common.command import SETTINGS, Command, Group
from tfdist.cli.common.option_parts import OutputFile
from tfdist.errors import ConfigError


@click.group(
    cls=Group,
    examples={
        "tfdist run --trace trace.json -n 2 train.py": "a trace at the end of a job",
        "tfdist trace save -o trace.json": "a trace of the job that runs",
        "tfdist trace merge before.json after.json -o both.json": "two traces side by side",
    },
    page="monitoring-stacks",
    context_settings=SETTINGS,
)
def command() -> None:
    """Write steps of all workers as a chrome trace, on one clock; https://ui.perfetto.dev opens it."""


@command.command(
    cls=Command,
    short_help="Write the last steps of a running job as a trace.",
    examples={
        "tfdist trace save -o trace.json": "of the only job that runs here",
        "tfdist trace save 3f9a -o trace.json": "of the job whose id begins so",
        "tfdist run --trace trace.json -n 2 train.py": "of a job, at its end",
    },
    epilog="Exit code: 0 when it is written, 1 when nothing was recorded, 2 when there is no such job.",
    page="monitoring-stacks",
)
@click.option("-o", "--output", metavar="FILE", type=OutputFile(), required=True, help="File to write.")
@click.argument("job", default="")
def save(*, output: str, job: str) -> None:
    """Write the last 2,048 steps of each worker of JOB, which was started with `tfdist run --monitor`."""
    from tfdist.cluster.job_files import steps_folder
    from tfdist.monitor.recording import chrome_trace
    from tfdist.monitor.verdict.job_bound import read_folder
    from tfdist.monitor.watch import observing

    name, folder = observing.found(job)
    start = observing.newest_start(folder)
    rows = {} if start is None else read_folder(steps_folder(folder, start))
    if not rows:
        raise click.ClickException(f"job {name} has recorded no step; start it with `tfdist run --monitor`.")
    chrome_trace.write(output, chrome_trace.trace(rows))
    click.echo(f"{output}: {sum(map(len, rows.values()))} steps of {len(rows)} workers")


@command.command(
    cls=Command,
    short_help="Put several traces into one.",
    examples={
        "tfdist trace merge before.json after.json -o both.json": "two jobs",
        "tfdist trace merge job.json profile.json -o all.json": "and another program's",
        "tfdist trace merge a/t.json b/t.json -o all.json": "files of one name",
    },
    epilog="Exit code: 0 when it is written, 2 when a file is no trace.",
    page="monitoring-stacks",
)
@click.option("-o", "--output", metavar="FILE", type=OutputFile(), required=True, help="File to write.")
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def merge(*, output: str, traces: tuple[str, ...]) -> None:
    """Put chrome TRACES into one file, in which each keeps its own times and its processes have its name."""
    from tfdist.monitor.recording import chrome_trace

    found = {name: _read(name) for name in traces}
    merged = chrome_trace.merged(found)
    chrome_trace.write(output, merged)
    click.echo(f"{output}: {len(merged['traceEvents'])} events of {len(found)} traces")


def _read(name: str) -> dict[str, object]:
    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON ({error}); name files that `tfdist run --trace` has written.") from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
        raise ConfigError(
            f"{name} is not a Chrome trace: it has no list of events. Name a file that `tfdist run --trace` wrote."
        )
    return {"traceEvents": events}
