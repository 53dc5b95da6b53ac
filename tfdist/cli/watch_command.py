"""``tfdist watch``: read the state of a job and draw it, repeatedly."""

import json
import time
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.validation import number

_ENDED = "If it has ended: name its event file (tfdist run --event-file) instead."


@click.command(
    cls=Command,
    examples={
        "tfdist run --monitor -n 2 train.py": "prints, for instance: job 3f9ac1d2...",
        "tfdist watch 3f9a": "that job; without a name the only one that runs",
        "tfdist watch --web 3f9a": "the same as a web page on this machine",
        "tfdist watch --json events.jsonl": "a job that has ended, from its event file; --web: as a page",
    },
    epilog="Exit code: 0 when the job has ended or was shown, 2 when there is none.",
    page="monitoring",
)
@click.option("--every", type=float, default=1.0, metavar="S", help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="Look once, and print it as JSON.")
@click.option("--web", is_flag=True, help="Serve a page and /metrics on the loopback interface.")
@click.option("--port", type=int, metavar="P", help="Port of --web.  [default: any free one]")
@click.argument("job", default="")
def command(*, every: float, once: bool, as_json: bool, web: bool, port: int | None, job: str) -> None:
    """Show what a job of this machine does: workers, parts of their steps, loss, memory, faults, and the verdict.

    JOB is the beginning of the id that `tfdist run --monitor` printed, or an event file. Without --monitor there is
    less to show: what workers do, their steps, memory and processors.
    """
    number("--every", every, minimum=0.05)
    if web and (once or as_json):
        raise click.UsageError("--web serves until the job ends; leave --once and --json out.")
    if port is not None and not web:
        raise click.UsageError("--port is the port of --web; give both, or neither.")
    if port is not None and not 0 <= port < 65536:
        raise click.UsageError(f"--port is {port}; it must be from 0 to 65535.")
    from tfdist.monitor.watch import event_log, observing

    is_past = bool(job) and Path(job).is_file()
    observer = event_log.Past(Path(job)) if is_past else observing.Observer(job, instead=_ENDED)
    if web:
        _serve(observer, every, port or 0)
    elif once or as_json or is_past:
        shown = observer.look()
        if shown is None:
            raise click.ClickException("the job has just ended.")
        _print(shown, as_json=as_json)
    else:
        _live(observer, every)


def _print(shown, *, as_json: bool) -> None:  # type: ignore[no-untyped-def]
    if as_json:
        click.echo(json.dumps(shown.as_json()))
        return
    from rich.console import Console

    from tfdist.monitor.watch.terminal import page

    Console(soft_wrap=True).print(page(shown))


def _live(observer, every: float) -> None:  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.live import Live

    from tfdist.monitor.watch.terminal import page

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while (shown := observer.look()) is not None:
            live.update(page(shown), refresh=True)
            time.sleep(every)
    click.echo(f"job {observer.job} has ended")


def _serve(observer, every: float, port: int) -> None:  # type: ignore[no-untyped-def]
    from tfdist.monitor.watch.server import Page

    with Page(observer, every=every, port=port) as page:
        click.echo(f"http://127.0.0.1:{page.port}/ shows job {observer.job}; Ctrl-C ends this, and not the job")
        page.wait()
    click.echo(f"job {observer.job} has ended")
