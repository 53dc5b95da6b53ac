"""The display of the equivalence matrix: its rows, its cells as they arrive, and the report."""

from collections.abc import Sequence

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tfdist.cli.common.progress import Watch, screen
from tfdist.verify.column import Column
from tfdist.verify.feature import Feature
from tfdist.verify.matrix_report import Cell, Report

_STYLES = {"green": "green", "refused": "yellow", "left out": "dim"}
_DETAIL_LINES = 6


def print_list(rows: Sequence[Feature], columns: Sequence[Column]) -> None:
    table = Table("feature", "group", "what it trains", box=None)
    for entry in rows:
        table.add_row(entry.name, entry.group, escape(entry.summary))
    console = Console()
    console.print(table)
    console.print(f"{len(rows)} features; columns: {', '.join(column.name for column in columns)}", highlight=False)


def print_report(report: Report, rows: Sequence[Feature]) -> None:
    lanes = report.lanes()
    console = screen(max(100, 30 + 34 * len(lanes)))
    table = Table("feature", *(f"{column}\n{'plain' if plain else 'tfdist'}" for column, plain in lanes))
    for index, entry in enumerate(rows):
        cells = [report.cell(entry.name, column, baseline=plain) for column, plain in lanes]
        last_of_group = index + 1 == len(rows) or rows[index + 1].group != entry.group
        table.add_row(entry.name, *(_styled(cell) for cell in cells), end_section=last_of_group)
    console.print(table)
    alike: dict[tuple[str, str], list[Cell]] = {}  # so that a column that cannot run at all is explained once
    for cell in report.cells:
        if cell.is_bad and not cell.baseline:
            alike.setdefault((cell.column, cell.detail if cell.error else cell.feature), []).append(cell)
    for first, *others in alike.values():
        lines = "\n  ".join(first.detail.splitlines()[:_DETAIL_LINES])
        more = f" and {len(others)} more" if others else ""
        title = f"{first.feature}{more}, {first.column}: {first.text}"
        console.print(f"[red]{title}[/red]\n  {escape(lines)}", highlight=False)
    console.print(report.summary(), highlight=False)
    if report.versions:
        versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        console.print(f"in {report.seconds:.0f} s, {versions}", highlight=False)


def _styled(cell: Cell | None) -> str:
    if cell is None:
        return ""
    style = _STYLES.get(cell.status, "red")
    return f"[{style}]{escape(cell.text)}[/{style}]"


class MatrixWatch(Watch):
    """Progress on standard error: bars on a terminal, or a line per cell elsewhere."""

    def __init__(self, rows: Sequence[Feature], columns: Sequence[Column], *, baseline: bool) -> None:
        bars = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[last]}"))
        super().__init__(TextColumn("{task.description:26}"), *bars, transient=False)
        self._tasks: dict[tuple[str, bool], TaskID] = {}
        #: the finished cells
        self.cells: list[Cell] = []
        for plain in (False, True) if baseline else (False,):
            for column in columns:
                title = f"{column.name}{' plain' if plain else ''}"
                self._tasks[column.name, plain] = self.progress.add_task(title, total=len(rows), last="", start=False)

    def show(self, cell: Cell) -> None:
        # several threads call this, which rich allows
        self.cells.append(cell)
        task = self._tasks[cell.column, cell.baseline]
        self.progress.start_task(task)
        self.progress.update(task, advance=1, last=f"{cell.feature} {_styled(cell)}")
        if not self.is_terminal:
            kind = " plain" if cell.baseline else ""
            click.echo(f"{cell.column}{kind} {cell.feature}: {cell.text} ({cell.seconds:.1f} s)", err=True)
