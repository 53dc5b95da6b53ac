"""Work in other processes, which do not run the script that asks for it once more: loky starts them without it."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from tfdist.compat import loky_tracker
from tfdist.errors import TfdistError
from tfdist.waiting import awaited, done_heeding_signals

_AHEAD = 2  # tasks that are given to each process


def in_processes(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], processes: int) -> Iterator[Any]:
    """Yield the results of a function for each tuple of arguments, as they are ready.

    The first error stops the rest, and so does leaving the iteration. No process stays.
    """
    pool = loky_tracker.started(processes)
    ended_well = False
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        for future in done_heeding_signals(futures):
            yield _result(future, "processes=1")
        ended_well = True
    finally:
        loky_tracker.end(pool, at_once=not ended_well)


class InOrder:
    """Processes for any number of iterations, each of which gives results in the order of its tasks.

    They are started when the first task is given, and end with `close`.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: Any = None
        self._lock = threading.Lock()

    def each(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, tuple[Any, ...]]]) -> Iterator[Any]:
        """Yield (key, result) for each (key, arguments); a few tasks are taken ahead."""
        waiting: deque[tuple[Any, Future[Any]]] = deque()
        for key, arguments in tasks:
            if self._pool is None:
                self._pool = loky_tracker.started(self._processes)
            waiting.append((key, self._pool.submit(function, *arguments)))
            if len(waiting) > _AHEAD * self._processes:
                key, future = waiting.popleft()
                yield key, _result(future, "fewer processes")
        for key, future in waiting:
            yield key, _result(future, "fewer processes")

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function; several threads may ask at once."""
        with self._lock:
            if self._pool is None:
                self._pool = loky_tracker.started(self._processes)
            future = self._pool.submit(function, *arguments)
        return _result(future, "fewer processes")

    def close(self, *, at_once: bool = False) -> None:
        """End the processes; ``at_once`` also those that are at work."""
        if self._pool is not None:
            loky_tracker.end(self._pool, at_once=at_once)
            self._pool = None


def _result(future: "Future[Any]", cure: str) -> Any:
    error = awaited(future).exception()
    if error is not None and type(error).__name__ in ("TerminatedWorkerError", "BrokenProcessPool"):
        raise TfdistError(
            f"a process that wrote or decoded was ended from outside ({error}). If memory ran out, pass {cure}; run "
            "again to go on behind the shards that are finished."
        ) from error
    return future.result()
