"""A pool of worker processes that run the same function together, under a deadline.

Processes are started when the first call needs them and kept for the next. If a worker ends during a call, or does not
answer in time, or the call is interrupted, all are ended; the next call starts new ones.

Example:
    >>> with WorkerPool(lambda: [dict(os.environ)] * 2) as pool:      # doctest: +SKIP
    ...     replies = pool.call("os:getpid", {}, timeout_seconds=30)
    >>> [reply.status for reply in replies]                           # doctest: +SKIP
    ['returned', 'returned']
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from tfdist.processes.pool import pool_channel
from tfdist.processes.worker_failure import how_it_ended
from tfdist.waiting import end_process

# When a worker has failed, its peers may wait for it for ever: this long they may still report failures of their own.
_AFTER_FAILURE_SECONDS = 5.0
_EXIT_SECONDS = 2.0
_STACKS_SECONDS = 0.5
_LOG_BYTES = 12_000


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply of one worker to a call.

    Attributes:
        worker: the index of the worker.
        status: "returned", "raised", "exited" (the process ended) or "silent" (no answer in time).
        value: the value that the function returned, a JSON value.
        types: the names of the raised exception's class and its bases, most derived first.
        message: the exception's message, or a text that says how the process ended.
        detail: the traceback; for "exited" and "silent" the end of the process's output.
        seconds: the seconds since the start of the call.
    """

    worker: int
    status: Literal["returned", "raised", "exited", "silent"]
    value: Any = None
    types: tuple[str, ...] = ()
    message: str = ""
    detail: str = ""
    seconds: float = 0.0


def failures(replies: Sequence[Reply]) -> list[Reply]:
    """Return the replies of workers that failed, the first cause first.

    A silent worker is a consequence when another one failed, whatever the clock says.
    """
    failed = (reply for reply in replies if reply.status != "returned")
    return sorted(failed, key=lambda reply: (reply.status == "silent", reply.seconds))


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    requests: int
    replies: int
    log: IO[bytes]
    mailbox: pool_channel.Mailbox = field(default_factory=pool_channel.Mailbox)

    def printed(self) -> str:
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")


class WorkerPool:
    """A pool of worker processes that call the same function together.

    Args:
        environments: a function that returns the environment of each worker; called at every start, so that ports are
            fresh.
        start: a function that starts a process; by default `started`.

    The processes have their own directory for temporary files, which is removed with them: they are ended at once, with
    no time to clean up. Each is ended by `close`, on leaving the ``with`` block, and by itself when this process dies.
    """

    def __init__(self, environments: Callable[[], Sequence[Mapping[str, str]]], start: "Start | None" = None) -> None:
        self._environments = environments
        self._started = start or started
        self._processes: list[_Process] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False
        # `close` may come from another thread than a call: it kills, the call notices and lets go of the pipes
        self._calling = threading.RLock()
        self._starting = threading.RLock()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the processes are running."""
        return bool(self._processes)

    def call(self, target: str, arguments: Mapping[str, Any], *, timeout_seconds: float) -> tuple[Reply, ...]:
        """Run ``module:function`` with keyword arguments on every worker at once, and return the workers' replies.

        Args:
            target: the function as ``module:name``, importable in the worker, such as ``"mypackage.steps:train"``.
            arguments: the keyword arguments, JSON values.
            timeout_seconds: the deadline: a worker that has not answered by then is "silent"; so is one that has not
                answered 5 s after another one failed.
        Returns:
            One reply per worker, in the workers' order. If any is "exited" or "silent", all processes have been ended.

        Example:
            >>> pool.call("os:getpid", {}, timeout_seconds=30)         # doctest: +SKIP
        """
        with self._calling:
            started = time.monotonic()
            self._start()
            try:
                for process in self._processes:
                    with contextlib.suppress(BrokenPipeError):  # it has ended since the last call: seen as such below
                        pool_channel.write(process.requests, {"target": target, "arguments": dict(arguments)})
                answers = _collect(self._processes, started, started + timeout_seconds)
            except BaseException:  # the next call would take late answers to this one for its own
                self.end()
                raise
            replies = _replies(self._processes, answers, time.monotonic() - started)
            if any(reply.status in ("exited", "silent") for reply in replies):
                self.end()
            return replies

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the processes during the ``with`` block, so that they do not use the processor.

        They do not notice if this process dies meanwhile, unless the kernel tells them.
        """
        for process in self._processes:
            process.popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._processes:
                process.popen.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End the processes; the next call starts new ones."""
        with self._calling:
            processes, self._processes = self._processes, []
            for process in processes:
                os.close(process.requests)  # the worker exits by itself
            for process in processes:
                end_process(process.popen, _EXIT_SECONDS)
                os.close(process.replies)
                process.log.close()
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None

    def close(self) -> None:
        """End the processes for good; a call under way in another thread returns with "exited"."""
        with self._starting:
            self._closed = True
            for process in self._processes:
                process.popen.kill()
        self.end()

    def _start(self) -> None:
        with self._starting:
            if self._closed:
                raise RuntimeError("the pool is closed; make a new one.")
            if self._processes:
                return
            try:
                self._scratch = tempfile.TemporaryDirectory(prefix="tfdist-pool-", ignore_cleanup_errors=True)
                for environment in self._environments():
                    self._processes.append(_connected(self._started, {**environment, "TMPDIR": self._scratch.name}))
            except BaseException:
                self.end()
                raise


def started(
    environment: Mapping[str, str], requests: int, replies: int, log: IO[bytes], *, inside: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start a worker process in its own session, so that only the parent gets Ctrl-C."""
    return subprocess.Popen(
        [*inside, sys.executable, "-m", "tfdist.processes.pool.pool_worker", str(requests), str(replies)],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(requests, replies),
        start_new_session=True,
    )


Start = Callable[[Mapping[str, str], int, int, IO[bytes]], "subprocess.Popen[bytes]"]


def finding_tfdist(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds this tfdist first."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")]))
    return {**environment, "PYTHONPATH": path}


def _connected(start: Start, environment: Mapping[str, str]) -> _Process:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        log = ours.enter_context(tempfile.TemporaryFile("a+b"))
        read_requests, requests = os.pipe()
        theirs.callback(os.close, read_requests)
        ours.callback(os.close, requests)
        replies, write_replies = os.pipe()
        ours.callback(os.close, replies)
        theirs.callback(os.close, write_replies)
        popen = start(finding_tfdist(environment), read_requests, write_replies, log)
        ours.pop_all()
    return _Process(popen, requests, replies, log)


def _collect(processes: list[_Process], started: float, deadline: float) -> dict[int, tuple[Any, float]]:
    """Return the answers in time: message (None for an ended process) and seconds, by worker."""
    answers: dict[int, tuple[Any, float]] = {}
    with selectors.DefaultSelector() as selector:
        for index, process in enumerate(processes):
            selector.register(process.replies, selectors.EVENT_READ, index)
        while len(answers) < len(processes) and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                index = key.data
                data = os.read(key.fd, 2**16)
                messages = processes[index].mailbox.put(data)
                if data and not messages:
                    continue
                message = messages[0] if messages else None
                answers[index] = (message, time.monotonic() - started)
                selector.unregister(key.fd)
                if message is None or "error" in message:
                    deadline = min(deadline, time.monotonic() + _AFTER_FAILURE_SECONDS)
    return answers


def _replies(processes: list[_Process], answers: dict[int, tuple[Any, float]], seconds: float) -> tuple[Reply, ...]:
    silent = [process for index, process in enumerate(processes) if index not in answers]
    for process in silent:
        process.popen.send_signal(signal.SIGUSR1)  # prints its stacks
    if silent:
        time.sleep(_STACKS_SECONDS)
    replies = []
    for index, process in enumerate(processes):
        message, at = answers.get(index, (None, seconds))
        reply = partial(Reply, worker=index, seconds=at)
        if index not in answers:
            replies.append(reply(status="silent", message=f"no answer after {seconds:.0f} s", detail=process.printed()))
        elif message is None:
            replies.append(reply(status="exited", message=_ending(process.popen), detail=process.printed()))
        elif "error" in message:
            types, text, trace = (message["error"][key] for key in ("types", "message", "traceback"))
            replies.append(reply(status="raised", types=tuple(types), message=text, detail=trace))
        else:
            replies.append(reply(status="returned", value=message["value"]))
    return tuple(replies)


def _ending(popen: subprocess.Popen[bytes]) -> str:
    try:
        code = popen.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "the process closed its pipe"
    return f"the process ended: {how_it_ended(code)}"
