"""Waits during which signal handlers still run, and handlers of signals that ask a process to end.

Python runs handlers in its main thread, which the system has to wake for that. It does not always do so. A signal may
come just before the main thread begins to wait, or another thread may take it. Threads that start threads or processes
do so, because they block signals for that moment. A wait without a limit then continues, and Ctrl-C is forgotten.
"""

import contextlib
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILLED_SECONDS = 60.0  # for a killed process to be gone: the kernel may have much memory to free
LOOK_SECONDS = 0.2  # the longest wait of a main thread that is to heed signals


class HasFileno(Protocol):
    """A file or a socket."""

    def fileno(self) -> int:
        """Return its descriptor."""


@contextlib.contextmanager
def handled(handler: Callable[[int, Any], Any], numbers: Collection[signal.Signals] = ENDING) -> Iterator[None]:
    """Handle signals; an ignored signal stays ignored, as SIGHUP does under `nohup`."""
    before = {one: signal.getsignal(one) for one in numbers if signal.getsignal(one) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def wait_heeding_signals(process: "subprocess.Popen[Any]") -> int:
    """Wait for the end of a process; handlers of signals run meanwhile."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_SECONDS)


def end_process(
    process: "subprocess.Popen[Any]", seconds: float, numbers: Sequence[signal.Signals] = (signal.SIGKILL,)
) -> None:
    """Wait for the end of a process; after each ``seconds`` send it the next signal.

    A killed process that the kernel still holds after a minute, such as one that reads from a dead disk, is left to it.
    """
    for number in numbers:
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_SECONDS)


def readable(file: "HasFileno", seconds: float) -> bool:
    """Wait at most this long until something can be read from a file or socket; return whether that is so.

    Its descriptor may be any number: `select.select` takes none above 1,023.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def join_heeding_signals(thread: threading.Thread) -> None:
    """Wait for the end of a thread; handlers of signals run meanwhile."""
    while thread.is_alive():
        thread.join(LOOK_SECONDS)


def done_heeding_signals(work: "Collection[Future[Any]]") -> "Iterator[Future[Any]]":
    """Yield finished futures in the order of completion; handlers of signals run meanwhile."""
    from concurrent import futures  # most who wait have none

    left = set(work)
    while left:
        done, left = futures.wait(left, LOOK_SECONDS, futures.FIRST_COMPLETED)
        yield from done


def awaited(future: "Future[Any]") -> "Future[Any]":
    """Return a future once it is done; handlers of signals run meanwhile."""
    return next(done_heeding_signals([future]))


class Flag:
    """A flag that signal handlers set, and any other code may set.

    An event has a lock, which the interrupted thread may hold: that thread and the handler would wait for each other.

    Example:
        >>> flag = Flag()
        >>> flag.wait(0), flag.set(), flag.wait(60)
        (False, None, True)
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait at most this long until the flag is set, and return whether it is."""
        until = time.monotonic() + seconds
        while not self._is_set and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self._is_set
