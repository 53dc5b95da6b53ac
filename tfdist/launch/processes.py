"""The processes of a job: start, watch, signal, end. Every worker leads a session of its own, so that its children
can be reached, and so that Ctrl-C in a terminal reaches the agent alone, which passes it on.

A worker that has ended stays a zombie until `reap`: its process group keeps its number, and no signal goes astray.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tfdist.errors import TfdistError
from tfdist.launch import guardian
from tfdist.launch.plan import WorkerSpec
from tfdist.launch.supervise import Event, Exited


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A started worker.

    Attributes:
        spec: what was started.
        pid: its process.
        outputs: what to read standard output and error from; empty when the worker has the agent's.
        collect: waits for the process, for so many seconds; called by `reap` alone.
        watcher: the thread that reports the end of the process.
    """

    spec: WorkerSpec
    pid: int
    outputs: tuple[int, ...]
    collect: Callable[[float], None]
    watcher: threading.Thread


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child process of this one.

    Attributes:
        pid: its process, which leads a session.
        collect: waits for it, for so many seconds.
    """

    pid: int
    collect: Callable[[float], None]


class Events(Protocol):
    """Where events are put, from any thread."""

    def put(self, event: Event) -> None:
        """Put one there."""


# (what to start, its complete environment, descriptors of its standard input, output and error) -> the process
Starter = Callable[[WorkerSpec, Mapping[str, str], tuple[int, int, int]], Child]


def started_anew(spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
    """Start a process by its command.

    Args:
        spec: what to start.
        environment: complete.
        streams: descriptors of standard input, output and error; the caller keeps its own.
    Raises:
        OSError: the system cannot.
    """
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        spec.argv, env=dict(environment), stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )

    def collect(seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)

    return Child(pid=process.pid, collect=collect)


def start(
    spec: WorkerSpec,
    inherited: Mapping[str, str],
    events: Events,
    *,
    piped: bool,
    starter: Starter = started_anew,
) -> Worker:
    """Start one worker; its end is put into ``events``.

    The calling thread must outlive the worker: Linux ends the worker together with the thread that started it.

    Args:
        spec: what to start.
        inherited: the agent's environment.
        events: where the end of the process is reported.
        piped: whether standard output and error go into pipes; otherwise the worker has the agent's, and its input.
        starter: what makes the process.
    Raises:
        TfdistError: the system cannot start it.
    """
    outputs: list[int] = []
    given: list[int] = []  # to the worker; closed here
    try:
        if piped:
            given.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(2):
                for ends, end in zip((outputs, given), os.pipe(), strict=True):
                    ends.append(end)
        child = starter(spec, spec.environ(inherited), (given[0], given[1], given[2]) if piped else (0, 1, 2))
    except OSError as error:
        for descriptor in outputs:
            os.close(descriptor)
        raise TfdistError(
            f"{spec.task} cannot be started ({error}). The command is {list(spec.argv)}; free memory or "
            "processes, or start fewer workers."
        ) from error
    finally:
        for descriptor in given:
            os.close(descriptor)
    watcher = threading.Thread(
        target=_watch, args=(spec.index, child.pid, events), name=f"watch {spec.task}", daemon=True
    )
    watcher.start()
    return Worker(spec=spec, pid=child.pid, outputs=tuple(outputs), collect=child.collect, watcher=watcher)


def _watch(index: int, pid: int, events: Events) -> None:
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    now = time.monotonic()
    assert result is not None
    code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    events.put(Exited(worker=index, returncode=code, time=now))


def send(worker: Worker, number: int) -> None:
    """Send a signal: SIGKILL to all processes of the worker's group, any other to the worker alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if number == signal.SIGKILL:
            os.killpg(worker.pid, number)
        else:
            os.kill(worker.pid, number)


def is_stopped(worker: Worker) -> bool:
    """Return whether the process stands still, because of SIGSTOP or the like; False where this cannot be told."""
    try:
        with open(f"/proc/{worker.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False


def end_leftovers(workers: tuple[Worker, ...], job_id: str, *, grace_seconds: float) -> int:
    """End what the ended workers left running: children, in whatever session: SIGTERM, the grace period, SIGKILL.

    Returns:
        How many processes there were.
    """
    sessions = [worker.pid for worker in workers]
    left = guardian.members(job_id, sessions=sessions)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + (grace_seconds if left else 0.0)
    while time.monotonic() < deadline and guardian.members(job_id, sessions=sessions):
        time.sleep(0.02)
    guardian.end_job(job_id, sessions=sessions)
    return len(left)


def reap(workers: tuple[Worker, ...], *, timeout_seconds: float) -> None:
    """Collect the ended workers, and the threads that watched them; one that will not end is left to the system."""
    deadline = time.monotonic() + timeout_seconds
    for worker in workers:
        worker.collect(max(0.1, deadline - time.monotonic()))
        worker.watcher.join(timeout=max(0.1, deadline - time.monotonic()))
        for descriptor in worker.outputs:
            os.close(descriptor)
