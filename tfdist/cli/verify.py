"""`tfdist verify`: the equivalence matrix on this machine."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tfdist import verify
from tfdist.cli.common import completion
from tfdist.cli.common.command import Command
from tfdist.cli.common.files import json_option
from tfdist.cli.common.interrupts import unwinding
from tfdist.cli.common.progress import Watch
from tfdist.errors import MissingDependencyError
from tfdist.strategies import registry
from tfdist.verify.column import Column
from tfdist.verify.feature import Feature
from tfdist.verify.report import Cell, Report

_STYLES = {"green": "green", "refused": "yellow", "left out": "dim"}
_DETAIL_LINES = 6


@click.command(
    cls=Command,
    examples={
        "tfdist verify --strategy mirrored-2": "one column; all take an hour",
        "tfdist verify --baseline --feature 'clip*'": "what tfdist repairs in clipping",
        "tfdist verify --strategy mirrored --feature even": "one cell per number of replicas",
        "tfdist verify --pairs --strategy mirrored-2": "every two choices together",
    },
    page="matrix",
    epilog="Exit code: 0 when every cell of tfdist is green, 1 when one is not, 2 when the request makes no sense.",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.features,
    help="Only this feature, group or glob.",
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.columns,
    help="Only this strategy, column or glob.",
)
@click.option("--pairs", "in_pairs", is_flag=True, help="Run rows in which every two choices meet, not the matrix.")
@click.option("--baseline", is_flag=True, help="Run plain Keras and TensorFlow too, beside tfdist: what is repaired.")
@click.option("--list", "only_list", is_flag=True, help="Show the features and columns, run nothing.")
@json_option
@click.option("--markdown", is_flag=True, help="Print the table as it goes into a README.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Columns that run at once.")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Longest time for a cell, and for a start, which has two minutes at least.",
)
def command(
    features: Sequence[str],
    strategies: Sequence[str],
    in_pairs: bool,
    baseline: bool,
    only_list: bool,
    json_path: str | None,
    markdown: bool,
    jobs: int,
    timeout_seconds: float | None,
) -> None:
    """Compare every Keras feature under every strategy with one device.

    A cell trains a small real model under a strategy, and again on one device with the same global batches. It shows
    the largest difference of weights, losses, metrics and predictions, relative to max(1, |value|), and is green up to
    1e-5 (float32). Strategies run on this machine's CPU, in processes of their own. --feature and --strategy may be
    given several times.

    The matrix has a row for each feature. With --pairs the rows are combinations of optimizer, what is around it
    (clipping, accumulation, ...), model, loop, input, loss and metrics: so chosen that every two of these choices meet
    in a row, and so few that they take minutes. A row is named by its choices; --feature takes globs of them.

    \b
    3e-08            green: the numbers of one device
    WRONG 1.7e-02    other numbers
    ERROR Name       an exception of that name
    HANG, CRASH      no answer in time; the process died
    refused          tfdist says clearly that it does not do this
    -                makes no sense under this strategy
    """
    rows = verify.feature.select(features, _pairs() if in_pairs else None)
    columns = verify.column.select(strategies)
    if only_list:
        _print_list(rows, columns)
        return
    columns = _runnable(columns, named=bool(strategies))
    on_stdout = json_path == "-"
    with unwinding(), _Watch(rows, columns, baseline=baseline) as watch:
        report = verify.run(
            rows, columns, baseline=baseline, jobs=jobs, deadline_seconds=timeout_seconds, on_cell=watch.show
        )
    if json_path and not on_stdout:
        Path(json_path).write_text(report.to_json() + "\n", encoding="utf-8")
    if on_stdout:
        click.echo(report.to_json())
    elif markdown:
        click.echo(report.to_markdown(), nl=False)
    else:
        _print_report(report, rows)
    if not report.is_green:
        sys.exit(1)


def _pairs() -> Mapping[str, Feature]:
    from tfdist.verify import pairs  # makes its rows when it is loaded

    return pairs.features()


def _runnable(columns: Sequence[Column], *, named: bool) -> tuple[Column, ...]:
    """Return the columns whose strategy has all that it needs, and say which have not; an error if they were named."""
    missing = [column for column in columns if not registry.get(column.strategy).is_installed]
    for needs in dict.fromkeys(registry.get(column.strategy).needs for column in missing):
        assert needs is not None
        names = ", ".join(c.name for c in missing if registry.get(c.strategy).needs == needs)
        if named:
            raise MissingDependencyError(f"{names}: {needs[0]} is not installed. Install it: {needs[1]}")
        click.echo(f"left out: {names}, because {needs[0]} is not installed. Install it: {needs[1]}", err=True)
    return tuple(column for column in columns if column not in missing)


def _print_list(rows: Sequence[Feature], columns: Sequence[Column]) -> None:
    table = Table("feature", "group", "what it trains", box=None)
    for entry in rows:
        table.add_row(entry.name, entry.group, escape(entry.summary))
    console = Console()
    console.print(table)
    console.print(f"{len(rows)} features; columns: {', '.join(column.name for column in columns)}", highlight=False)


def _print_report(report: Report, rows: Sequence[Feature]) -> None:
    # Without a terminal (a pipe, a log) there is no width to obey: no cell may be cut.
    console = Console() if sys.stdout.isatty() else Console(width=max(100, 30 + 34 * len(report.lanes())))
    lanes = report.lanes()
    table = Table("feature", *(f"{column}\n{'plain' if plain else 'tfdist'}" for column, plain in lanes))
    for index, entry in enumerate(rows):
        cells = [report.cell(entry.name, column, baseline=plain) for column, plain in lanes]
        last_of_group = index + 1 == len(rows) or rows[index + 1].group != entry.group
        table.add_row(entry.name, *(_styled(cell) for cell in cells), end_section=last_of_group)
    console.print(table)
    alike: dict[tuple[str, str], list[Cell]] = {}  # a column that cannot run at all is explained once
    for cell in report.cells:
        if cell.is_bad and not cell.baseline:
            alike.setdefault((cell.column, cell.detail if cell.error else cell.feature), []).append(cell)
    for first, *others in alike.values():
        lines = "\n  ".join(first.detail.splitlines()[:_DETAIL_LINES])
        more = f" and {len(others)} more" if others else ""
        title = f"{first.feature}{more}, {first.column}: {first.text}"
        console.print(f"[red]{title}[/red]\n  {escape(lines)}", highlight=False)
    console.print(f"{report.summary()}\nin {report.seconds:.0f} s, {_versions(report)}", highlight=False)


def _styled(cell: Cell | None) -> str:
    if cell is None:
        return ""
    style = _STYLES.get(cell.status, "red")
    return f"[{style}]{escape(cell.text)}[/{style}]"


def _versions(report: Report) -> str:
    return ", ".join(f"{name} {version}" for name, version in report.versions.items())


class _Watch(Watch):
    """Shows on standard error how far the run is: bars on a terminal, a line per cell elsewhere."""

    def __init__(self, rows: Sequence[Feature], columns: Sequence[Column], *, baseline: bool) -> None:
        super().__init__(
            TextColumn("{task.description:26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}"),
            transient=False,
        )
        self._tasks: dict[tuple[str, bool], TaskID] = {}
        for plain in (False, True) if baseline else (False,):
            for column in columns:
                title = f"{column.name}{' plain' if plain else ''}"
                self._tasks[column.name, plain] = self.progress.add_task(title, total=len(rows), last="", start=False)

    def show(self, cell: Cell) -> None:
        """Show a cell that is there; called from several threads, which rich allows."""
        task = self._tasks[cell.column, cell.baseline]
        self.progress.start_task(task)
        self.progress.update(task, advance=1, last=f"{cell.feature} {_styled(cell)}")
        if not self.is_terminal:
            kind = " plain" if cell.baseline else ""
            click.echo(f"{cell.column}{kind} {cell.feature}: {cell.text} ({cell.seconds:.1f} s)", err=True)
