"""Workers of pools, forked from one process that has imported TensorFlow (Linux).

As a script it is the program of such a worker: requests come from standard input, and replies go where errors would.

Example:
    >>> with forked_workers(dict(os.environ)) as start:               # doctest: +SKIP
    ...     pool = WorkerPool(lambda: [dict(os.environ)] * 2, start)
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, cast

import tfdist
from tfdist.errors import TfdistError
from tfdist.processes.fork_server import ForkServer
from tfdist.processes.pool import pool_worker
from tfdist.processes.pool.worker_pool import Start, finding_tfdist, started

_READY_SECONDS = 120.0  # within which TensorFlow is imported, or never
_LOOK_SECONDS = 0.005


@contextlib.contextmanager
def forked_workers(environment: Mapping[str, str], modules: Sequence[str] = tfdist.PRELOADED) -> Iterator[Start | None]:
    """Yield a function that forks workers of pools, from several threads; None where no process can be forked.

    A worker is started anew if it cannot be forked. The process from which workers are forked imports the modules with
    the given variables, and ends with the block. Each worker gets variables of its own.
    """
    if sys.platform != "linux":
        yield None
        return
    try:
        server = ForkServer.start(finding_tfdist(environment), folder=os.getcwd(), modules=modules)
    except TfdistError:
        yield None
        return
    try:
        yield _Forks(server)
    finally:
        server.close()


class _Forks:
    """A function that starts workers of pools."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._is_broken = False

    def __call__(
        self, environment: Mapping[str, str], requests: int, replies: int, log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        with self._lock:
            if not self._is_broken and self._server.wait(_READY_SECONDS):
                with contextlib.suppress(TfdistError):
                    argv = [sys.executable, __file__]
                    pid = self._server.spawn(argv, environment, stdin=requests, stdout=log.fileno(), stderr=replies)
                    return cast("subprocess.Popen[bytes]", _Forked(pid))
            self._is_broken = True
        return started(environment, requests, replies, log)


class _Forked:
    """A forked worker, with the part of `subprocess.Popen` that a pool needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()  # a signal must not reach another process that got the number of an ended one

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    ended, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # another thread has waited for it, so its end is unknown
                    ended, status = self.pid, signal.SIGKILL
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with self._lock:
                if self.returncode is None:
                    os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _work() -> None:
    """Serve a pool as `pool_worker` does, in a process whose standard streams are the pool's."""
    sys.path[0] = os.getcwd()  # as for `python -m`, not the folder of this file
    tempfile.tempdir = None  # the process before the fork had another
    requests, replies = os.dup(0), os.dup(2)
    os.dup2(1, 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.argv[1:] = [str(requests), str(replies)]
    pool_worker.main()


if __name__ == "__main__":
    _work()
