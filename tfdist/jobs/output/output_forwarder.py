"""Forwards workers' output to the screen in a thread, so that a slow reader does not stop supervision."""

import itertools
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tfdist.jobs.output.screen import Output
from tfdist.jobs.output.tf_log_filter import Filter

_CHUNK = 1 << 16
_MOST_IN_A_PIPE = 1 << 20  # bytes; the rest when the workers have ended
_MOST_KEPT = 1024  # pieces of output that is held
LONGEST_LINE = 1 << 20  # bytes; a longer line is cut, so that memory stays bounded


class LineBuffer:
    """Cuts a stream of bytes into lines, and tracks the line of a progress bar.

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
        """Show all output, also what was held back."""
        self._held = False
        os.write(self._wake_write, b"+")

    def finish(self, *, give_up: Callable[[], bool]) -> None:
        """Write the remaining output of ended workers, and stop; held output of standby workers is dropped.

        Processes that still hold a pipe open are not waited for, unless the pipe ends later. A slow reader of the
        screen is, until ``give_up`` says otherwise. A second call does nothing.
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
    r"""What a terminal leaves visible of a line with carriage returns.

    Example:
        >>> visible(b"\r 50%\b\b\b\b\r100%\r")
        b'100%'
    """
    if b"\r" not in line:
        return line
    segments = [segment.replace(b"\b", b"") for segment in line.split(b"\r")]
    return next((segment for segment in reversed(segments) if segment), b"")


def _character_boundary(data: bytes, cut: int) -> int:
    """The last place up to ``cut`` that is not inside a UTF-8 character."""
    for back in range(4):
        if data[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut
