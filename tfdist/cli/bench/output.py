"""What several benchmarks share: models, where a report goes, and what is said of the machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

MODELS = ("perceptron", "convolutional", "small", "resnet50")


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


def turn(number: int, rounds: int) -> str:
    """Return which round it is; 0 is the one that is not counted.

    Example:
        >>> turn(0, 7), turn(3, 7)
        ('warming up', 'round 3 of 7')
    """
    return f"round {number} of {rounds}" if number else "warming up"
