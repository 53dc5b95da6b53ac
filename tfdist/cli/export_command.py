"""``tfdist export``: find the job, and pass its figures to exporters until it ends."""

import contextlib
import logging
import os
import sys
from threading import Thread

import click

from tfdist.cli.common.command import Command
from tfdist.errors import ConfigError
from tfdist.validation import integer
from tfdist.waiting import Flag, handled


@click.command(
    cls=Command,
    examples={
        "tfdist run --monitor -n 2 train.py": "prints, for instance: job 3f9ac1d2...",
        "tfdist export 3f9a tensorboard:logs": "curves and histograms of each worker",
        "tfdist export 3f9a prometheus:9400 mlflow": "/metrics on a port, and a run of MLflow",
    },
    epilog="Exit code: 0 when all was exported, 1 when some was not, 2 when there is no such job or exporter.",
    page="monitoring-exporters",
)
@click.option("--every", type=int, default=10, metavar="N", help="Fewest steps in a point of a curve.")
@click.option("--beside", is_flag=True, hidden=True, help="A job has started it, and ends it by standard input.")
@click.option("--after", type=int, default=-1, hidden=True, help="The last step that is left out.")
@click.argument("job")
@click.argument("exporters", nargs=-1, required=True)
def command(*, every: int, beside: bool, after: int, job: str, exporters: tuple[str, ...]) -> None:
    """Export the figures of JOB to EXPORTERS, until JOB ends, or until Ctrl-C.

    JOB is the beginning of the id that `tfdist run --monitor` printed. An exporter is tensorboard:DIR,
    prometheus:[HOST:]PORT, mlflow:URI or html:FILE. None of them can slow or end a worker: they read data that
    the workers write into memory anyway.
    """
    integer("--every", every, minimum=1)
    from tfdist.monitor.exporters.exporter import parse_all
    from tfdist.monitor.exporters.exporting import Feed, export
    from tfdist.monitor.watch.observing import Observer

    targets = parse_all(exporters, option="EXPORTERS")
    enough = Flag()
    if not beside:
        feed = Feed(Observer(job), every=every, after=after)
        with handled(lambda *_: enough.set()):
            ended = export(feed, targets, warn=lambda text: click.echo(text, err=True), enough=enough)
        sys.exit(0 if ended else 1)
    logging.disable(logging.ERROR)  # silences libraries, because each failure is reported once by tfdist

    end_with_input(enough)
    observer = None
    while observer is None:
        over = enough.wait(0.1)
        try:
            observer = Observer(job)
        except ConfigError:
            if over:
                sys.exit(0)
    export(Feed(observer, every=every, after=after), targets, warn=lambda text: print(text, flush=True), enough=enough)


def end_with_input(enough: Flag, descriptor: int = 0) -> None:
    """Set a flag at a line of the input, or at its end, which comes with that of the parent process."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(descriptor, 1)  # not by `sys.stdin`: Python aborts at its exit while a thread waits in that
        enough.set()

    Thread(target=wait, name="end of input", daemon=True).start()
