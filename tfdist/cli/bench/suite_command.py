"""Commands of benchmarks, with options from the fields of a `Suite` and its report as tables, JSON and a picture."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.table import Table as RichTable
from rich.text import Text

from tfdist.bench.suite import Report, Suite, Table
from tfdist.bench.workers.slow_network import RATES, EmulatedLink
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import field_options, json_option, plot_option, write_json
from tfdist.cli.common.progress import Line, screen, unwinding
from tfdist.planner.plot_style import require_matplotlib

_Function = TypeVar("_Function", bound=Callable[..., Any])


def link_options(function: _Function) -> _Function:
    delay = click.option("--delay", "delay_ms", metavar="MS", type=click.FloatRange(0), help="Delay of each packet.")
    link = click.option("--link", type=click.Choice(list(RATES)), help="Emulated network of workers; needs root.")
    return link(delay(function))


def link_of(link: str | None, delay_ms: float | None) -> EmulatedLink | None:
    if delay_ms is not None and link is None:
        raise click.UsageError("--delay needs a link, such as --link 1gbit.")
    return None if link is None else EmulatedLink(rate=link, delay_ms=delay_ms or 0.0)


def suite_command(
    name: str, suite: type[Suite], *, examples: Mapping[str, str], page: str, has_picture: bool = False
) -> click.Command:
    """Return the command of a suite; the docstring of the suite is the help of the command."""

    def command(json_path: str | None, plot: Path | None = None, **values: Any) -> None:
        if plot is not None:
            require_matplotlib()
        leave(measured(suite(**values)), json_path, plot)

    options = json_option(plot_option(command) if has_picture else command)
    made = click.command(name, cls=Command, examples=examples, page=page, help=inspect.getdoc(suite))
    return made(field_options(suite)(options))


def measured(suite: Suite) -> Any:
    with unwinding(), Line() as line:
        return suite.run(line.update)


def leave(report: Report, json_path: str | None, plot: Path | None = None) -> None:
    """Print a report as JSON if the path is ``-``, or else as tables, and write the named files."""
    if json_path != "-":
        show(report.shown())
    write_json(report.to_json(), json_path)
    if plot is not None:
        report.draw(plot)


def show(parts: Iterable[Table | str]) -> None:
    console = screen()
    for part in parts:
        if isinstance(part, str):
            console.print(part, highlight=False, markup=False)
            continue
        table = RichTable(*part.head, box=None)
        for row in part.rows:
            table.add_row(*map(Text, row))
        console.print(table)
