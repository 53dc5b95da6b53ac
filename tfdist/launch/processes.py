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
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from tfdist.errors import TfdistError
from tfdist.launch import guardian
from tfdist.launch.plan import WorkerSpec
from tfdist.launch.supervise import Event, Exited


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A started worker.

    Attributes:
        spec: what was started.
        process: the handle; it is waited for by `reap` alone.
        watcher: the thread that reports the end of the process.
    """

    spec: WorkerSpec
    process: "subprocess.Popen[bytes]"
    watcher: threading.Thread


def start(spec: WorkerSpec, inherited: Mapping[str, str], events: "SimpleQueue[Event]", *, piped: bool) -> Worker:
    """Start one worker; its end is put into ``events``.

    The calling thread must outlive the worker: Linux ends the worker together with the thread that started it.

    Args:
        spec: what to start.
        inherited: the agent's environment.
        events: where the end of the process is reported.
        piped: whether standard output and error go into pipes; otherwise the worker has the agent's, and its input.
    Raises:
        TfdistError: the system cannot start it.
    """
    channel = subprocess.PIPE if piped else None
    try:
        process = subprocess.Popen(
            spec.argv,
            env=spec.environ(inherited),
            stdin=subprocess.DEVNULL if piped else None,
            stdout=channel,
            stderr=channel,
            start_new_session=True,
        )
    except OSError as error:
        raise TfdistError(
            f"{spec.task} cannot be started ({error}). The command is {list(spec.argv)}; free memory or "
            "processes, or start fewer workers."
        ) from error
    watcher = threading.Thread(
        target=_watch, args=(spec.index, process.pid, events), name=f"watch {spec.task}", daemon=True
    )
    watcher.start()
    return Worker(spec=spec, process=process, watcher=watcher)


def _watch(index: int, pid: int, events: "SimpleQueue[Event]") -> None:
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    now = time.monotonic()
    assert result is not None
    code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    events.put(Exited(worker=index, returncode=code, time=now))


def send(worker: Worker, number: int) -> None:
    """Send a signal: SIGKILL to all processes of the worker's group, any other to the worker alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if number == signal.SIGKILL:
            os.killpg(worker.process.pid, number)
        else:
            os.kill(worker.process.pid, number)


def end_leftovers(workers: tuple[Worker, ...], job_id: str, *, grace_seconds: float) -> int:
    """End what the ended workers left running: children, in whatever session: SIGTERM, the grace period, SIGKILL.

    Returns:
        How many processes there were.
    """
    sessions = [worker.process.pid for worker in workers]
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
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        worker.watcher.join(timeout=max(0.1, deadline - time.monotonic()))
        for pipe in (worker.process.stdout, worker.process.stderr):
            if pipe is not None:
                pipe.close()
