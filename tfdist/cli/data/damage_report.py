"""Output of a damage check: how much was read, and the lines of the report."""

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tfdist.cli.common.progress import Watch

_MOST_LINES = 50


def echo_some(lines: list[str], *, last: int) -> None:
    """Print lines; of very many the first, and the last ones, which sum up."""
    details, summary = lines[: len(lines) - last], lines[len(lines) - last :]
    for line in details[:_MOST_LINES]:
        click.echo(line)
    if len(details) > _MOST_LINES:
        click.echo(f"... and {len(details) - _MOST_LINES} more; --json lists all.")
    for line in summary:
        click.echo(line)


class Reading(Watch):
    """Shows on standard error how many bytes were read: a bar, on a terminal alone."""

    def __init__(self, what: str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self.progress.add_task(what, total=None)

    def show(self, read: int, total: int) -> None:
        """Show how many bytes of how many are read; called from several threads, which rich allows."""
        self.progress.update(self._task, total=total, completed=read)
