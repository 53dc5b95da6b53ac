"""A pool of processes for tasks of any kind: a function and its arguments, which are sent as pickles.

The processes do not run the script that makes the pool. A pickle is code, so it is read only from a connection
whose other end the parent or its own child holds.
"""

import itertools
import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import cloudpickle

from tfdist.errors import TfdistError
from tfdist.processes.pool.worker_pool import finding_tfdist
from tfdist.processes.worker_failure import how_it_ended
from tfdist.waiting import awaited, done_heeding_signals, end_process

_AHEAD = 2  # tasks that are sent ahead for each process
_END_SECONDS = 5.0


class _RemoteError(Exception):
    """The traceback of an error in another process."""


class TaskPool:
    """A pool of processes that the first task starts, and that end with `close`, or with a ``with`` block.

    ``cure`` is the advice in messages if memory is too small.
    """

    def __init__(self, processes: int, *, cure: str = "fewer processes") -> None:
        self._count = processes
        self._cure = cure
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Future[Any], bytes] | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._broken = ""

    def __enter__(self) -> "TaskPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=kind is not None)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Submit a call of a function to one of the processes; any thread may do so."""
        data = cloudpickle.dumps((function, arguments))
        with self._lock:
            while len(self._workers) < self._count:
                self._workers.append(_Worker(self._serve))
        future: Future[Any] = Future()
        self._tasks.put((future, data))
        return future

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in one of the processes and return its result; any thread may do so."""
        return awaited(self.submit(function, *arguments)).result()

    def each(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, tuple[Any, ...]]]) -> Iterator[Any]:
        """Yield (key, result) for each (key, arguments), in order; a few tasks are taken ahead."""
        waiting: deque[tuple[Any, Future[Any]]] = deque()
        for key, arguments in tasks:
            waiting.append((key, self.submit(function, *arguments)))
            if len(waiting) > _AHEAD * self._count:
                key, future = waiting.popleft()
                yield key, awaited(future).result()
        for key, future in waiting:
            yield key, awaited(future).result()

    def close(self, *, at_once: bool = False) -> None:
        """End the processes; with ``at_once`` also those that are working."""
        with self._lock:
            workers, self._workers = self._workers, []
        for _ in workers:
            self._tasks.put(None)
        for worker in workers:
            worker.end(at_once=at_once)

    def _serve(self, worker: "_Worker") -> None:
        while (task := self._tasks.get()) is not None:
            future, data = task
            if not self._broken and future.set_running_or_notify_cancel():
                try:
                    worker.connection.send_bytes(data)
                    answer = worker.connection.recv_bytes()
                except (EOFError, OSError):
                    self._broken = how_it_ended(worker.process.wait())
                else:
                    _settle(future, answer)
            if self._broken and not future.done():
                future.set_exception(
                    TfdistError(
                        f"a process of the pool was ended from outside ({self._broken}). If memory ran out, pass "
                        f"{self._cure}. Run again to continue after what is finished."
                    )
                )


def _settle(future: "Future[Any]", answer: bytes) -> None:
    """Give a future the result or the error that a process has sent; an unreadable answer is an error, too."""
    try:
        is_result, value = pickle.loads(answer)  # noqa: S301 - of our own child
    except Exception as error:  # noqa: BLE001 - it may be of any type, and the caller waits for it
        future.set_exception(error)
        return
    if is_result:
        future.set_result(value)
        return
    raised, text = value
    raised.__cause__ = _RemoteError(f"\n{text}")
    future.set_exception(raised)


class _Worker:
    """A process of the pool, and the thread that gives it one task after another."""

    def __init__(self, serve: Callable[["_Worker"], None]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tfdist.processes.pool.task_worker", str(theirs.fileno())],
                    env=finding_tfdist(os.environ),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # the keyboard's Ctrl-C is for this process, which ends the pool
                )
            self.connection.send_bytes(pickle.dumps(sys.path))
        except OSError as error:
            self.connection.close()
            raise TfdistError(f"no process can be started ({error}). Free memory or processes.") from error
        self._thread = threading.Thread(target=serve, args=(self,), name="tfdist-task-pool", daemon=True)
        self._thread.start()

    def end(self, *, at_once: bool) -> None:
        """End the process, at once or after the tasks that were submitted."""
        if at_once:
            self.process.kill()
        self._thread.join()
        self.connection.close()  # the process ends itself
        end_process(self.process, _END_SECONDS)


def in_processes(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], processes: int) -> Iterator[Any]:
    """Yield results as they are ready; a few tasks are taken ahead, because each may hold much.

    The first error stops the other tasks, and so does leaving the iteration. No process stays.
    """
    left, waiting = iter(tasks), set[Future[Any]]()
    with TaskPool(processes, cure="processes=1") as pool:
        while True:
            more = itertools.islice(left, (1 + _AHEAD) * processes - len(waiting))
            waiting.update(pool.submit(function, *task) for task in more)
            if not waiting:
                break
            future = next(done_heeding_signals(waiting))
            waiting.remove(future)
            yield future.result()
