"""`tfdist search resume`: continue a search from the last event of its journal."""

import sys
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.search.search_telling import conclude, tell
from tfdist.tune.search.search_run import go_on


@click.command(
    "resume",
    cls=Command,
    examples={
        "tfdist search resume search": "after Ctrl-C or a kill",
        "tfdist search resume search --slots 4": "",
        "tfdist search resume runs/a": "of --output runs/a",
    },
    epilog="Exit code: as of tfdist search.",
    page="search",
)
@click.option("--slots", type=click.IntRange(1), help="Another number of trials at the same time.")
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path, slots: int | None) -> None:
    """Resume a search that was ended.

    The journal has all earlier decisions, and trials that were running resume from their backups. Run the command in
    the folder in which the search was started, because the path of the script may be relative.
    """
    with unwinding():
        found = go_on(folder, slots=slots, tell=tell)
    conclude(found)
    sys.exit(0 if found.best is not None else 1)
