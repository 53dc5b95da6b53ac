"""The guarded folders of a job, as a context manager.

The maker of a folder holds a lock on it, which the system releases however the process ends. An unlocked folder of this
user and host belongs to a job that was killed with its guardian; the next job removes it. Folders without a host's
name, and on file systems without locks, are left alone.
"""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster.job_files import MEMORY, PREFIX
from tfdist.errors import TfdistError
from tfdist.processes import guardian
from tfdist.variables import JOB_ID
from tfdist.waiting import end_process

_HOST_FILE = "host"


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The temporary folders of a job, and its guardian.

    The content of `memory` (in memory if possible) outlives the workers, but not the job.
    """

    job_id: str
    directory: Path
    memory: Path
    process: "subprocess.Popen[bytes]"
    watched: set[int] = field(default_factory=set)  # sessions

    def watch(self, session: int) -> None:
        """Tell the guardian of a worker's session."""
        self.watched.add(session)
        self._tell(session)

    def forget(self, session: int) -> None:
        """Tell the guardian that a session is over, before its number is reused."""
        self.watched.discard(session)
        self._tell(-session)

    def _tell(self, number: int) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed; the job continues without
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
    """Yield a guard; after the block its folders and process are gone, and so are leftovers of dead jobs."""
    with contextlib.ExitStack() as stack:
        directory = memory = claim(stack, job_id, parent)
        if in_memory:
            clear([MEMORY])
            with contextlib.suppress(OSError):
                memory = stack.enter_context(claimed(job_id, MEMORY))
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
        with contextlib.suppress(BrokenPipeError):  # it was killed
            process.stdin.write(guardian.DONE)
            process.stdin.close()
        with contextlib.suppress(BrokenPipeError):  # for data that could not be written
            process.stdin.close()
        end_process(process, guardian.DEADLINE_SECONDS)


def claim(stack: contextlib.ExitStack, job_id: str, parent: Path | None = None) -> Path:
    """Return a folder that is `claimed` until the stack is closed; remove leftovers of dead jobs before."""
    try:
        clear([parent or Path(tempfile.gettempdir())])
        return stack.enter_context(claimed(job_id, parent))
    except OSError as error:
        raise TfdistError(
            f"no temporary directory can be made ({error}). Set TMPDIR to one that is writable."
        ) from error


@contextlib.contextmanager
def claimed(job_id: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new private folder, which is removed after the block.

    Example:
        >>> with claimed("a1") as folder:
        ...     clear([folder.parent])  # its owner is alive
        ...     folder.exists()
        True
        >>> folder.exists()
        False
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{job_id}-", dir=parent))
    descriptor = None
    try:
        descriptor = _opened(folder)
        with contextlib.suppress(OSError):  # no locks here: then no other job removes it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / _HOST_FILE).write_text(socket.gethostname(), encoding="utf-8")
        yield folder
    finally:
        guardian.remove(str(folder))
        if descriptor is not None:
            os.close(descriptor)


def clear(parents: Iterable[Path]) -> None:
    """Remove the folders of this user's dead jobs."""
    for parent in parents:
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(parent)):
                if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                    _remove_if_dead(Path(entry.path))


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it lives, has gone meanwhile, or is another user's
        descriptor = _opened(folder)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return  # and read nothing there: it could be a pipe
            if (folder / _HOST_FILE).read_text(encoding="utf-8") != socket.gethostname():
                return
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            guardian.remove(str(folder))
        finally:
            os.close(descriptor)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
