"""What several benchmarks share: models, options, where a report goes, and what is said of the machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

MODELS = ("perceptron", "convolutional", "small", "resnet50")

_OF_A_TRANSFORMER = {
    "blocks": "Of the transformer.",
    "width": "Of an activation.",
    "heads": "Of an attention.",
    "length": "Places of a text.",
    "words": "That there are.",
    "batch_size": "Texts of a step.",
    "microbatches": "Of a batch.",
    "steps": "Steps per measurement.",
    "rounds": "Measurements each.",
}


class _Report(Protocol):
    def to_json(self) -> str:
        """Return it for programs."""


_Any = TypeVar("_Any", bound=_Report)


def transformer_options(setup: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command an option for each field of a setup of a transformer.

    Args:
        setup: with its defaults, a `tfdist.bench.workers.transformer.Transformer`.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, text in reversed(_OF_A_TRANSFORMER.items()):
            if hasattr(setup, name):
                option = f"--{name.replace('_', '-')}"
                default = getattr(setup, name)
                command = click.option(option, type=click.IntRange(1), default=default, show_default=True, help=text)(
                    command
                )
        return command

    return decorated


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
