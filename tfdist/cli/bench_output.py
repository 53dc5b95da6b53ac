"""Where the report of a benchmark goes, and what all of them say of the machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click


class _Report(Protocol):
    def to_json(self) -> str:
        """Return it for programs."""


_Any = TypeVar("_Any", bound=_Report)


def leave(report: _Any, json_path: str | None, show: Callable[[_Any], None]) -> None:
    """Print a report: as JSON alone where the path is ``-``, else for people, and into the file if there is one."""
    if json_path == "-":
        click.echo(report.to_json())
        return
    show(report)
    if json_path:
        Path(json_path).write_text(report.to_json() + "\n", encoding="utf-8")


def about(machine: Mapping[str, Any]) -> str:
    """Return what a benchmark ran on, in a sentence."""
    return (
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow {machine['tensorflow']}, Python "
        f"{machine['python']}; {machine['time']}; load {machine['load average']} before, "
        f"{machine['load average at the end']} after."
    )
