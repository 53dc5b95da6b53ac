"""Progress of a command on standard error: bars on a terminal, the command's own lines elsewhere."""

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import Progress, ProgressColumn
from rich.text import Text


class Watch:
    """Bars that stand while a ``with`` block runs."""

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
    """What is done now, on a terminal, in a line that is written when that changes.

    Nothing moves in between: a spinner is a thread, and takes its time from what is measured in the same process.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def update(self, text: str) -> None:
        """Say what is done now."""
        if self._live is not None:
            self._live.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
