"""The display of a command's progress on standard error, and signals that unwind the stack."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn, Self

import click
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from tfdist.waiting import handled

_LINE_SECONDS = 5.0  # between two lines, if there is no terminal: some benchmarks tell of hundreds of measurements


class Watch:
    def __init__(self, *columns: ProgressColumn, transient: bool = True) -> None:
        console = Console(stderr=True)
        self.is_terminal = console.is_terminal
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=transient)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


class Phases:
    """The phase of a command: a spinner with a text on a terminal; in a pipe or a log, a line for each new text."""

    def __init__(self, first: str = "") -> None:
        console = Console(stderr=True)
        self._status = console.status(escape(first) or "starting") if console.is_terminal else None
        self._first = first
        self._told = ""

    def update(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
        elif text != self._told:
            click.echo(text, err=True)
        self._told = text

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        elif self._first:
            self.update(self._first)
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


class Line:
    """A line on the terminal that is rewritten when its text changes; in a pipe or a log, a line every few seconds.

    It has no spinner, whose thread would take time from measurements in the same process.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next = time.monotonic() + _LINE_SECONDS

    def update(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)
        elif time.monotonic() >= self._next:
            click.echo(text, err=True)
            self._next = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def screen(width: int = 160, **options: Any) -> Console:
    """Return a console on standard output; in a pipe or a log it does not cut the cells of tables."""
    return Console(width=None if sys.stdout.isatty() else width, **options)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, with exit code 128 + signal; ignored signals stay ignored."""

    def leave(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    with handled(leave, (signal.SIGTERM, signal.SIGHUP)):
        yield
