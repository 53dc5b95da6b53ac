"""The forwarding of several workers' output to one terminal or file: whole lines, coloured prefixes, one living line.

A thread reads the workers' pipes, so that a slow reader does not stop supervision. The living line is the chief's
incomplete line, such as a progress bar. It stays at the bottom of a terminal; elsewhere only its last state is written,
when the line ends.
"""

import itertools
import os
import re
import select
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tfdist.jobs.output.tf_log_filter import Filter

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
    """An output to file descriptors by stream (1 and 2), for any thread. `terminals` are streams with a movable
    cursor."""

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
    """Return the screen for these workers; a single worker has no prefix. Colour needs a terminal without NO_COLOR."""
    descriptors = {1: standard_output, 2: standard_error}
    movable = frozenset(s for s, fd in descriptors.items() if os.isatty(fd) and os.environ.get("TERM") != "dumb")
    return Screen(
        descriptors=descriptors,
        terminals=movable,
        prefixes={stream: prefixes_of(names, coloured=stream in movable) for stream in descriptors},
    )


def prefixes_of(names: Sequence[str], *, coloured: bool) -> dict[int, bytes]:
    """Return the prefix of each worker's lines; none for a single worker."""
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
    """Return the text cut to the terminal's width: a line that wraps could not be cleared again."""
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


_CHUNK = 1 << 16
_MOST_IN_A_PIPE = 1 << 20  # bytes; the rest when the workers have ended
_MOST_KEPT = 1024  # pieces of output that is held
LONGEST_LINE = 1 << 20  # bytes; a longer line is cut, so that memory stays bounded


class LineBuffer:
    """A buffer that cuts a stream of bytes into lines, and tracks the line of a progress bar.

    A carriage return starts a line anew: as in a terminal, only the last text with content is shown. Encodings do not
    matter.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add data; return the lines that are complete now, without line ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if b"\r" in self._rest:  # drop frames of a progress bar that newer frames replaced
            before, _, after = self._rest.rpartition(b"\r")
            self._rest = visible(before) + b"\r" + after
        while len(self._rest) > LONGEST_LINE:
            cut = _character_boundary(self._rest, LONGEST_LINE)
            lines.append(self._rest[:cut])
            self._rest = self._rest[cut:]
        return [visible(line) for line in lines]

    def pending(self) -> bytes:
        return visible(self._rest)

    def finish(self) -> list[bytes]:
        rest, self._rest = self.pending(), b""
        return [rest] if rest else []


@dataclass(frozen=True, kw_only=True)
class _Stream:
    number: int  # 1 standard output, 2 standard error
    worker: int
    ends_later: bool = False
    lines: LineBuffer = field(default_factory=LineBuffer)
    filter: Filter = field(default_factory=Filter)


class Pump:
    """A running thread that reads the pipes of the workers until `finish`."""

    def __init__(self, screen: Output, on_closed: Callable[[], None], *, held: bool = False) -> None:
        self._screen = screen
        self._held = held
        self._kept: deque[tuple[int, int, list[bytes]]] = deque(maxlen=_MOST_KEPT)
        self._on_closed = on_closed
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._finished = False
        self._thread = threading.Thread(target=self._run, name="pump output", daemon=True)
        self._thread.start()

    def add(self, descriptor: int, *, stream: int, worker: int, ends_later: bool = False) -> None:
        os.set_blocking(descriptor, False)
        content = _Stream(number=stream, worker=worker, ends_later=ends_later)
        self._selector.register(descriptor, selectors.EVENT_READ, content)
        os.write(self._wake_write, b"+")

    def release(self) -> None:
        """Show all output, including the output that was held back."""
        self._held = False
        os.write(self._wake_write, b"+")

    def finish(self, *, give_up: Callable[[], bool]) -> None:
        """Write the remaining output of ended workers, and stop; held output of standby workers is dropped.

        It does not wait for processes that still hold a pipe open, unless the pipe ends later. It waits for a slow
        reader of the screen until ``give_up`` returns True. A second call does nothing.
        """
        if self._finished:
            return
        self._finished = True
        os.write(self._wake_write, b".")
        while self._thread.is_alive():
            self._thread.join(timeout=0.2)
            if self._thread.is_alive() and give_up():
                return  # it hangs in a write, and ends with the program
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        told = finishing = False
        while not finishing:
            for key, _ in self._selector.select():
                if key.data is None:
                    finishing = b"." in os.read(self._wake_read, _CHUNK)
                    self._show_kept()
                else:
                    self._read_once(key)
            if self._screen.closed.is_set() and not told:
                told = True
                self._on_closed()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                os.set_blocking(key.fd, key.data.ends_later)
                for _ in itertools.count() if key.data.ends_later else range(_MOST_IN_A_PIPE // _CHUNK):
                    if not self._read_once(key):
                        break
                self._end(key)

    def _read_once(self, key: selectors.SelectorKey) -> bool:
        """Forward one chunk; True if there may be more now."""
        assert isinstance(key.fileobj, int)
        stream: _Stream = key.data
        try:
            data = os.read(key.fileobj, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # the worker has closed its end of a terminal
            data = b""
        if not data:
            self._end(key)
            return False
        complete = stream.lines.feed(data)
        chief = stream.worker == 0
        self._show(stream, complete)
        if chief and not self._held:
            self._screen.living(stream.number, stream.worker, stream.lines.pending())
        return True

    def _show(self, stream: _Stream, lines: list[bytes]) -> None:
        noise = self._screen.noise
        if noise is not None and stream.number == 2:
            lines = stream.filter.shown(lines, noise)
        if not lines:
            return
        if self._held:
            self._kept.append((stream.number, stream.worker, lines))
            return
        self._show_kept()  # `release` may have come since
        if stream.worker == 0:
            self._screen.living(stream.number, 0, b"")
        self._screen.lines(stream.number, stream.worker, lines)

    def _show_kept(self) -> None:
        while self._kept and not self._held:
            self._screen.lines(*self._kept.popleft())

    def _end(self, key: selectors.SelectorKey) -> None:
        if key.fileobj in self._selector.get_map():
            self._selector.unregister(key.fileobj)
            self._show(key.data, key.data.lines.finish())


def visible(line: bytes) -> bytes:
    r"""Return the part of a line with carriage returns that a terminal leaves visible.

    Example:
        >>> visible(b"\r 50%\b\b\b\b\r100%\r")
        b'100%'
    """
    if b"\r" not in line:
        return line
    segments = [segment.replace(b"\b", b"") for segment in line.split(b"\r")]
    return next((segment for segment in reversed(segments) if segment), b"")


def _character_boundary(data: bytes, cut: int) -> int:
    """Return the last place up to ``cut`` that is not inside a UTF-8 character."""
    for back in range(4):
        if data[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut
