"""The display of a command's progress on standard error, and signals that unwind the stack."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from rich.console import Console
from rich.live import Live
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from tfdist.waiting import handled


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


class Line:
    """A line on the terminal that is rewritten when its text changes.

    It has no spinner, whose thread would take time from measurements in the same process.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def update(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)

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
