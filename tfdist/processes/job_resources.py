"""The guarded directories of a job, as a context manager."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.job_files import MEMORY
from tfdist.errors import TfdistError
from tfdist.processes import guardian, job_folders
from tfdist.variables import JOB_ID


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
    """Yield a guard for the job; afterwards its directories and its process are gone, and those of dead jobs before."""
    with contextlib.ExitStack() as stack:
        try:
            job_folders.clear([parent or Path(tempfile.gettempdir()), *([MEMORY] if in_memory else [])])
            directory = stack.enter_context(job_folders.claimed(job_id, parent))
        except OSError as error:
            raise TfdistError(
                f"no temporary directory can be made ({error}). Set TMPDIR to one that is writable."
            ) from error
        memory = directory
        if in_memory:
            with contextlib.suppress(OSError):
                memory = stack.enter_context(job_folders.claimed(job_id, MEMORY))
        for path in also:
            stack.callback(guardian.remove, str(path))
        paths = [str(path) for path in (directory, memory, *also, *if_killed)]
        process = stack.enter_context(_guardian(job_id, paths))
        yield Guard(job_id=job_id, directory=directory, memory=memory, process=process)


@contextlib.contextmanager
def _guardian(job_id: str, paths: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    try:
        process = subprocess.Popen(
            [sys.executable, guardian.__file__, job_id, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != JOB_ID.name},  # of no outer job
            start_new_session=True,  # the keyboard's Ctrl-C is not for it
        )
    except OSError as error:
        raise TfdistError(f"no process can be started ({error}). Free memory or processes.") from error
    try:
        yield process
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed: nobody is left to be told
            process.stdin.write(guardian.DONE)
            process.stdin.close()
        with contextlib.suppress(BrokenPipeError):  # of what could not be written
            process.stdin.close()
        try:
            process.wait(guardian.DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
