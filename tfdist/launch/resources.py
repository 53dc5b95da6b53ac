"""What a job holds besides its processes, as contexts that give it back: signal handlers and a guarded directory."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from tfdist.errors import TfdistError
from tfdist.launch import guardian
from tfdist.launch.supervise import Received

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FAST = Path("/dev/shm")  # memory that looks like a directory


@contextlib.contextmanager
def signals_into(events: "SimpleQueue[Any]", *more: signal.Signals) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into events; one that is ignored (nohup, a background job) stays ignored.

    Outside of the main thread, where Python allows no handlers, nothing changes.

    Args:
        events: where they are put.
        more: other signals.
    """

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Received(number=number))

    in_main = threading.current_thread() is threading.main_thread()
    wanted = (*PASSED_ON, *more) if in_main else ()
    previous = {number: signal.getsignal(number) for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
    for number in previous:
        signal.signal(number, put)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Temporary directories, and a process that ends the job and removes them if this process is killed.

    Attributes:
        job_id: of the job.
        directory: where the workers record their failures.
        memory: a directory in memory, if there is one, else the same: what is in it outlives the workers, not the job.
        process: the guardian.
    """

    job_id: str
    directory: Path
    memory: Path
    process: "subprocess.Popen[bytes]"

    def watch(self, session: int) -> None:
        """Tell the guardian of a worker: the number of its session, which is that of its process."""
        self._tell(session)

    def forget(self, session: int) -> None:
        """Tell the guardian that nothing is left of a session, before its number can be another process'."""
        self._tell(-session)

    def _tell(self, number: int) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed; the job goes on without
            self.process.stdin.write(f"{number}\n".encode())
            self.process.stdin.flush()


@contextlib.contextmanager
def guarded(
    job_id: str,
    *,
    parent: Path | None = None,
    in_memory: bool = False,
    also: tuple[Path, ...] = (),
    if_killed: tuple[Path, ...] = (),
) -> Iterator[Guard]:
    """Yield a guard for the job; afterwards its directories and its process are gone.

    Args:
        job_id: of the job.
        parent: where the directory is made; where temporary files belong by default.
        in_memory: whether there is also one in memory, where the system has a place for it.
        also: files that are removed with the directories.
        if_killed: files and directories that are removed if this process is killed; else the caller sees to them.
    Raises:
        TfdistError: no temporary directory can be written, or the guardian cannot be started.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="tfdist-", dir=parent))
    except OSError as error:
        raise TfdistError(
            f"no temporary directory can be made ({error}). Set TMPDIR to one that is writable."
        ) from error
    memory = directory
    if in_memory:
        with contextlib.suppress(OSError):
            memory = Path(tempfile.mkdtemp(prefix=f"tfdist-{job_id}-", dir=_FAST))
    paths = [str(path) for path in (directory, memory, *also)]
    try:
        with _guardian(job_id, [*paths, *map(str, if_killed)]) as process:
            yield Guard(job_id=job_id, directory=directory, memory=memory, process=process)
    finally:
        for path in paths:
            guardian.remove(path)


@contextlib.contextmanager
def _guardian(job_id: str, paths: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    try:
        process = subprocess.Popen(
            [sys.executable, guardian.__file__, job_id, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != "TFDIST_JOB_ID"},  # of no outer job
            start_new_session=True,  # the keyboard's Ctrl-C is not for it
        )
    except OSError as error:
        raise TfdistError(f"no process can be started ({error}). Free memory or processes.") from error
    try:
        yield process
    finally:
        try:
            process.communicate(guardian.DONE, timeout=guardian.DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
