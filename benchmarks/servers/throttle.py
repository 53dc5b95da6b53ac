"""A process that is made slower: it is stopped and resumed in turns, some thirty times a second."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from tfdist.errors import ConfigError

__all__ = ["CYCLE_SECONDS", "Throttle", "stop_seconds"]

#: one turn of running and one of being stopped
CYCLE_SECONDS = 0.03

# A process is never stopped for longer at a time, even if this one was late: the rest of the stop comes later.
_LONGEST_STOP_SECONDS = 10 * CYCLE_SECONDS


def stop_seconds(ran: float, stopped: float, factor: float) -> float:
    """Return the seconds for which to stop a process now, so that it has run for 1 / ``factor`` of its time.

    Example:
        >>> stop_seconds(0.5, 0.75, 3.0)
        0.25
        >>> stop_seconds(0.5, 1.5, 3.0)
        0.0
    """
    return min(_LONGEST_STOP_SECONDS, max(0.0, ran * (factor - 1) - stopped))


class Throttle:
    """A context in which a process runs for 1 / ``factor`` of the time; afterwards it runs normally.

    Late turns are made up for, so the share is right over some seconds, whatever the load of the machine.

    Args:
        pid: the process.
        factor: how many times slower it becomes, at least 1.
        send: a function that sends a signal to a process; `os.kill`.

    Example:
        >>> with Throttle(pid, 3.0):                                  # doctest: +SKIP
        ...     measure()
    """

    def __init__(self, pid: int, factor: float, *, send: Callable[[int, int], None] = os.kill) -> None:
        if not factor >= 1:
            raise ConfigError(f"factor is {factor}; it must be at least 1: how many times slower the process gets.")
        self._pid, self._factor, self._send = pid, factor, send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tfdist-throttle-{pid}", daemon=True)

    def __enter__(self) -> "Throttle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._over.set()
            self._thread.join()
        finally:  # also if a second Ctrl-C comes while this waits for the thread
            self._signal(signal.SIGCONT)

    def _run(self) -> None:
        ran = stopped = 0.0
        last = time.monotonic()
        try:
            while not self._over.wait(CYCLE_SECONDS / self._factor):
                now = time.monotonic()
                ran, last = ran + now - last, now
                stop = stop_seconds(ran, stopped, self._factor)
                if not stop:
                    continue
                if not self._signal(signal.SIGSTOP):
                    return
                self._over.wait(stop)
                self._signal(signal.SIGCONT)
                now = time.monotonic()
                stopped, last = stopped + now - last, now
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        """Return whether the process still exists."""
        with contextlib.suppress(ProcessLookupError):
            self._send(self._pid, number)
            return True
        return False
