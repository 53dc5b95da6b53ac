"""Make local files and folders durable, and recognize what killed processes left behind.

Whoever makes a file or a folder under a hidden name holds a lock on it, which the system frees however the maker ends.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)


def make_directory(path: Path, *, durable: bool = True) -> None:
    """Make a folder and those above it; they are on the disk afterwards, if that is asked for."""
    missing = []
    for place in (path, *path.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        if durable:
            sync_directory(place.parent)


def sync_directory(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that keep directories otherwise
            raise
    finally:
        os.close(descriptor)


def claim(descriptor: int, *, shared: bool = False) -> bool:
    """Lock what is being made as long as the descriptor is open; return False where somebody else has the lock."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks here: then nobody removes it either
    return True


def remove_abandoned(path: Path, remove: Callable[[Path], None]) -> None:
    """Remove a file or a folder that was being made, if its maker has gone: nobody holds its lock."""
    with suppress(OSError):  # its maker lives, or has finished meanwhile
        # for a lock reading is enough; a pipe without a writer does not block
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
            _log.info("Removed %s, which a process left that has ended.", path)
        finally:
            os.close(descriptor)
