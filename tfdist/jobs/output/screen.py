"""Writes the lines of several workers to one terminal or file: whole lines, coloured prefixes, one living line.

The living line is the chief's incomplete line, such as a progress bar. It stays at the bottom of a terminal. Elsewhere
only its last state is written, when the line ends.
"""

import os
import re
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
CLEAR_LINE = b"\r\x1b[K"
_PATIENCE_SECONDS = 0.2  # between two questions whether to give up


class Output(Protocol):
    """The destination of output: a `Screen`, or a notebook cell.

    `speaker` begins the agent's own lines. `lends` allows a single worker to write to standard output and error itself.
    `closed` is set when the reader is gone. `noise` matches lines of standard error to drop; None shows all.
    """

    speaker: str
    lends: bool
    closed: threading.Event
    noise: re.Pattern[bytes] | None

    def lines(self, stream: int, worker: int, lines: list[bytes]) -> None:
        """Write complete lines of a worker."""

    def living(self, stream: int, worker: int, text: bytes) -> None:
        """Show ``text`` as the incomplete line; empty text removes it."""

    def message(self, text: str, *, style: str = "", give_up: Callable[[], bool]) -> None:
        """Write the agent's own message; if the reader takes nothing, wait until ``give_up``."""


@dataclass(kw_only=True)
class Screen:
    """File descriptors by stream (1 and 2), for any thread. `terminals` are the streams on which a cursor can move."""

    descriptors: dict[int, int]
    terminals: frozenset[int]
    prefixes: dict[int, dict[int, bytes]]
    closed: threading.Event = field(default_factory=threading.Event)
    speaker: str = "tfdist run"
    lends: bool = True
    noise: re.Pattern[bytes] | None = None
    _living: tuple[int, bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lines(self, stream: int, worker: int, lines: list[bytes]) -> None:
        prefix = self.prefixes[stream].get(worker, b"")
        self._write(stream, b"".join(prefix + line + b"\n" for line in lines))

    def living(self, stream: int, worker: int, text: bytes) -> None:
        if stream not in self.terminals:
            return
        shown = _cropped(self.prefixes[stream].get(worker, b"") + text, self.descriptors[stream]) if text else b""
        with self._lock:
            if self._living is None and not shown:
                return
            self._put(stream, CLEAR_LINE + shown)
            self._living = (stream, shown) if shown else None

    def message(self, text: str, *, style: str = "", give_up: Callable[[], bool]) -> None:
        first, end, rest = text.partition("\n")
        if style and 2 in self.terminals:
            first = _styled(first, style)
        data = f"{first}{end}{rest}\n".encode("utf-8", "backslashreplace")
        while not self._lock.acquire(timeout=_PATIENCE_SECONDS):  # the pump hangs in a write
            if give_up():
                return
        try:
            if 2 in self.terminals and self._living is not None:
                data = CLEAR_LINE + data + self._living[1]
            for start in range(0, len(data), select.PIPE_BUF):  # so much a pipe takes at once, when it takes anything
                while not select.select([], [self.descriptors[2]], [], _PATIENCE_SECONDS)[1]:
                    if give_up():
                        return
                self._put(2, data[start : start + select.PIPE_BUF])
        except (OSError, ValueError):  # standard error is closed
            return
        finally:
            self._lock.release()

    def _write(self, stream: int, data: bytes) -> None:
        if not data:
            return
        with self._lock:
            if self._living is None or stream not in self.terminals:
                self._put(stream, data)
            else:
                shown_on, shown = self._living
                self._put(shown_on, CLEAR_LINE)
                self._put(stream, data)
                self._put(shown_on, shown)

    def _put(self, stream: int, data: bytes) -> None:
        descriptor, view = self.descriptors[stream], memoryview(data)
        while view and not self.closed.is_set():
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:  # another program made it non-blocking: wait until it takes more
                select.select([], [descriptor], [], 1.0)
            except OSError:  # the reader or the terminal is gone
                self.closed.set()


def screen(names: Sequence[str], *, standard_output: int = 1, standard_error: int = 2) -> Screen:
    """The screen for these workers; a single one has no prefix. Colour needs a terminal without NO_COLOR."""
    descriptors = {1: standard_output, 2: standard_error}
    movable = frozenset(s for s, fd in descriptors.items() if os.isatty(fd) and os.environ.get("TERM") != "dumb")
    return Screen(
        descriptors=descriptors,
        terminals=movable,
        prefixes={stream: prefixes_of(names, coloured=stream in movable) for stream in descriptors},
    )


def prefixes_of(names: Sequence[str], *, coloured: bool) -> dict[int, bytes]:
    """The prefix of each worker's lines; none for a single worker."""
    if len(names) == 1:
        return {}
    parts = [name.partition(" ") for name in names]
    widths = {kind: max(len(number) for one, _, number in parts if one == kind) for kind, _, _ in parts}
    plain = {worker: f"[{kind}{gap}{number:>{widths[kind]}}]" for worker, (kind, gap, number) in enumerate(parts)}
    if coloured:
        plain = {worker: _styled(text, COLOURS[worker % len(COLOURS)]) for worker, text in plain.items()}
    return {worker: f"{text} ".encode() for worker, text in plain.items()}


def _styled(text: str, style: str) -> str:
    if os.environ.get("NO_COLOR"):
        return text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def _cropped(text: bytes, descriptor: int) -> bytes:
    """The text cut to the terminal's width: a line that wraps could not be cleared again."""
    from rich.console import Console
    from rich.text import Text

    try:
        columns = os.get_terminal_size(descriptor).columns
    except OSError:
        columns = 0
    width = (columns or 80) - 1  # a terminal that does not know its size says 0
    rich_text = Text.from_ansi(text.decode("utf-8", "replace"), no_wrap=True, end="")
    rich_text.truncate(width, overflow="crop")
    console = Console(force_terminal=True, color_system="truecolor", width=width, no_color=False)
    with console.capture() as captured:
        console.print(rich_text, end="", soft_wrap=True)
    return captured.get().encode()
