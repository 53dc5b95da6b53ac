"""``tfdist trace merge``: read traces, write one."""

import json
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.written_files import OutputFile
from tfdist.errors import ConfigError


@click.command(
    cls=Command,
    examples={
        "tfdist trace merge before.json after.json -o both.json": "two jobs",
        "tfdist trace merge job.json profile.json -o all.json": "and another program's",
        "tfdist trace merge a/t.json b/t.json -o all.json": "files of one name",
    },
    epilog="Exit code: 0 when it is written, 2 when a file is no trace.",
    page="monitoring-stacks",
)
@click.option("-o", "--output", metavar="FILE", type=OutputFile(), required=True, help="Where it is written.")
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def command(*, output: str, traces: tuple[str, ...]) -> None:
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
        raise ConfigError(f"{name} is no JSON ({error}); give files that `tfdist run --trace` has written.") from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
        raise ConfigError(
            f"{name} is no chrome trace: it has no list of events. Give what `tfdist run --trace` writes."
        )
    return {"traceEvents": events}
