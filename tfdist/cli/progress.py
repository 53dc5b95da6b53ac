"""How far a command is, on standard error: bars on a terminal, and elsewhere what a command says itself."""

from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class Watch:
    """Bars that stand while a ``with`` block runs.

    Args:
        columns: of each bar.
        transient: whether they go when the block ends.
    """

    def __init__(self, *columns: ProgressColumn, transient: bool = True) -> None:
        console = Console(stderr=True)
        self.is_terminal = console.is_terminal
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=transient)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
