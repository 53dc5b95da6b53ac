"""The folders of a job: each is locked as long as the process that made it lives, and a dead job's are cleared.

Who makes one holds a lock on it, which the system frees however that process ends. A folder of this user and this host
whose lock is free was left by a job of which every process was killed at once, its guardian too; the next job removes
it. A folder that does not say its host yet, and one on a file system that knows no locks, is left alone.
"""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfdist.cluster.job_files import PREFIX
from tfdist.processes import guardian

_HOST_FILE = "host"


@contextlib.contextmanager
def claimed(job_id: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that nobody else may enter; after the block it is gone.

    Example:
        >>> with claimed("a1") as folder:
        ...     clear([folder.parent])  # somebody lives in it
        ...     folder.exists()
        True
        >>> folder.exists()
        False
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{job_id}-", dir=parent))
    descriptor = None
    try:
        descriptor = _opened(folder)
        with contextlib.suppress(OSError):  # no locks here: then nobody removes it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / _HOST_FILE).write_text(socket.gethostname(), encoding="utf-8")
        yield folder
    finally:
        guardian.remove(str(folder))
        if descriptor is not None:
            os.close(descriptor)


def clear(parents: Iterable[Path]) -> None:
    """Remove the folders that dead jobs of this user have left."""
    for parent in parents:
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(parent)):
                if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                    _remove_if_dead(Path(entry.path))


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it lives, has gone meanwhile, or is another user's
        descriptor = _opened(folder)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid() or not _is_ours(folder):
                return
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            guardian.remove(str(folder))
        finally:
            os.close(descriptor)


def _is_ours(folder: Path) -> bool:
    return (folder / _HOST_FILE).read_text(encoding="utf-8") == socket.gethostname()


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
