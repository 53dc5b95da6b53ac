"""Moves what the workers write to the screen, in a thread: a slow reader must not keep the agent from supervising."""

import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tfdist.launch.lines import LineBuffer
from tfdist.launch.output import Output

_CHUNK = 1 << 16
_MOST_IN_A_PIPE = 1 << 20  # bytes; what is there when the workers have ended


@dataclass(frozen=True, kw_only=True)
class _Stream:
    number: int  # 1 standard output, 2 standard error
    worker: int
    lines: LineBuffer = field(default_factory=LineBuffer)


class Pump:
    """A running thread that reads the pipes of the workers until `finish`."""

    def __init__(self, screen: Output, on_closed: Callable[[], None], *, held: bool = False) -> None:
        """Start it.

        Args:
            screen: where the lines go.
            on_closed: called once, in the thread, when nobody reads the output any more.
            held: whether to read nothing before `release`.
        """
        self._released = threading.Event()
        if not held:
            self._released.set()
        self._screen = screen
        self._on_closed = on_closed
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._finished = self._dropped = False
        self._thread = threading.Thread(target=self._run, name="pump output", daemon=True)
        self._thread.start()

    def add(self, descriptor: int, *, stream: int, worker: int) -> None:
        """Read a pipe from now on; ``stream`` is 1 for standard output and 2 for standard error."""
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, _Stream(number=stream, worker=worker))
        os.write(self._wake_write, b"+")

    def release(self) -> None:
        """Read from now on, and what was written until now."""
        self._released.set()

    def finish(self, *, give_up: Callable[[], bool]) -> None:
        """Write all that the workers wrote before now, then stop; call it when they have ended.

        Nothing is written if it is held: these workers have never taken part.

        A process that still holds a pipe open is not waited for; a slow reader of the output is, as by any program,
        until ``give_up`` says that this is enough. A second call does nothing.
        """
        if self._finished:
            return
        self._finished = True
        self._dropped = not self._released.is_set()
        self._released.set()
        os.write(self._wake_write, b".")
        while self._thread.is_alive():
            self._thread.join(timeout=0.2)
            if self._thread.is_alive() and give_up():
                return  # it hangs in a write, and ends with the program
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        self._released.wait()
        if self._dropped:
            return
        told = finishing = False
        while not finishing:
            for key, _ in self._selector.select():
                if key.data is None:
                    finishing = b"." in os.read(self._wake_read, _CHUNK)
                else:
                    self._read_once(key)
            if self._screen.closed.is_set() and not told:
                told = True
                self._on_closed()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                for _ in range(_MOST_IN_A_PIPE // _CHUNK):
                    if not self._read_once(key):
                        break
                self._end(key)

    def _read_once(self, key: selectors.SelectorKey) -> bool:
        """Pass on one chunk; return whether there may be more now."""
        assert isinstance(key.fileobj, int)
        stream: _Stream = key.data
        try:
            data = os.read(key.fileobj, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._end(key)
            return False
        complete = stream.lines.feed(data)
        chief = stream.worker == 0
        if chief and complete:
            self._screen.living(stream.number, stream.worker, b"")
        self._screen.lines(stream.number, stream.worker, complete)
        if chief:
            self._screen.living(stream.number, stream.worker, stream.lines.pending())
        return True

    def _end(self, key: selectors.SelectorKey) -> None:
        if key.fileobj in self._selector.get_map():
            self._selector.unregister(key.fileobj)
            rest = key.data.lines.finish()
            if rest and key.data.worker == 0:
                self._screen.living(key.data.number, 0, b"")
            self._screen.lines(key.data.number, key.data.worker, rest)
