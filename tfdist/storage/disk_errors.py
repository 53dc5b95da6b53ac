"""Explain failures of a local disk: the path, the space left, and the fix."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfdist.errors import MissingFileError, StorageError, TfdistError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn the system's errors of the block, which is ``doing`` something to ``path``, into `StorageError`."""
    try:
        yield
    except TfdistError:
        raise
    except OSError as error:
        raise storage_error(error, path, doing) from error


def storage_error(error: OSError, path: Path, doing: str) -> StorageError:
    """Return the error that says what ``error`` means for ``path``, which could not be ``doing`` ("read", "written").

    Example:
        >>> full = OSError(errno.ENOSPC, "No space left on device")
        >>> str(storage_error(full, Path("/data/a"), "written"))  # doctest: +ELLIPSIS
        '[Errno 28] /data/a cannot be written: No space left on device (... free there). Free some space, ... again.'
    """
    kind = MissingFileError if error.errno == errno.ENOENT and doing != "written" else StorageError
    reason = os.strerror(error.errno) if error.errno else str(error)
    message = f"{path} cannot be {doing}: {reason} ({free_space(path)} free there). {advice(error.errno)}"
    return kind(error.errno, message, path=path) if error.errno else kind(message, path=path)


def advice(number: int | None) -> str:
    """Return what to do about an error of the system."""
    if number in _FULL:
        return "Free some space, or raise the quota, or choose a directory on another disk; then run again."
    if number == errno.EFBIG:
        return (
            "The file is larger than the file system or `ulimit -f` allows: choose smaller shards, or raise the limit."
        )
    if number in _FORBIDDEN:
        return f"User {os.geteuid()} may not do that here: change the rights, or choose another directory."
    if number in (errno.ENOTDIR, errno.EEXIST):
        return "A part of the path is a file: choose another directory."
    if number == errno.EISDIR:
        return "A directory has this name: remove it, or choose another directory."
    if number == errno.ENOENT:
        return "Look whether the name is right, and whether something removed it."
    if number in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open: raise `ulimit -n`."
    return "Look into the system's log (dmesg) whether the disk is sound and mounted."


def free_space(path: Path) -> str:
    """Return the space that is free where ``path`` lies or would lie, for a reader.

    Example:
        >>> free_space(Path("/proc/self/nothing/here"))
        '0 bytes'
    """
    for place in (path, *path.parents):
        with suppress(OSError):
            found = os.statvfs(place)
            return size_text(found.f_bavail * found.f_frsize)
    return "unknown space"


def size_text(size: int) -> str:
    """Return a number of bytes for a reader.

    Example:
        >>> size_text(999), size_text(3 << 19)
        ('999 bytes', '1.5 MiB')
    """
    if size < 1024:
        return f"{size} bytes"
    unit = min((size.bit_length() - 1) // 10, 6)
    return f"{size / (1 << 10 * unit):.1f} {'KMGTPE'[unit - 1]}iB"
