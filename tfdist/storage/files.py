"""Explain failures of a local disk: the path, the space left, and the fix."""

import errno
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfdist import validation
from tfdist.errors import ConfigError, MissingFileError, ShortReadError, StorageError, TfdistError

#: In bytes of UTF-8. File systems take 255; a temporary file's name is longer than that of the file it becomes.
LONGEST_NAME = 200
_HINT = "Names of files are plain: no folder, no leading dot, no control character."
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_log = logging.getLogger(__name__)


def is_plain(name: str) -> bool:
    """`plain_name` takes the name."""
    return bool(name.strip()) and not _unfit(name)


def plain_name(name: str) -> str:
    """The name, if it names a file in a directory and nothing else, locally and on an object store."""
    validation.text("the name of a file", name, hint=_HINT)
    if reason := _unfit(name):
        raise ConfigError(
            f"the name of a file is {validation.shown(name)}; it must {reason}", name="name", received=name
        )
    return name


def _unfit(name: str) -> str:
    if name.startswith(".") or any(sign in "/\\" or not sign.isprintable() for sign in name):
        return f"stay in its directory. {_HINT}"
    if len(name.encode()) > LONGEST_NAME:
        return f"have at most {LONGEST_NAME} bytes. Choose a shorter one."
    return ""


def temporary_name(name: str) -> str:
    """Return a new name for what will become the file ``name``; it is not plain, so nobody takes it for data."""
    return f".{name}.{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether `temporary_name` may have made ``name``."""
    return bool(_TEMPORARY.fullmatch(name))


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
    """The error that explains ``error``, because of which ``path`` could not be ``doing`` ("read", "written")."""
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
    """Return the space that is free where ``path`` lies or would lie, for a reader."""
    for place in (path, *path.parents):
        with suppress(OSError):
            found = os.statvfs(place)
            return size_text(found.f_bavail * found.f_frsize)
    return "unknown space"


def size_text(size: int) -> str:
    """Return a number of bytes for a reader."""
    if size < 1024:
        return f"{size} bytes"
    unit = min((size.bit_length() - 1) // 10, 6)
    return f"{size / (1 << 10 * unit):.1f} {'KMGTPE'[unit - 1]}iB"


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


def within(where: str, start: int, length: int, size: int) -> tuple[int, int]:
    """Return ``start`` and ``length`` as plain ints, if they lie in a file of ``size`` bytes.

    Nothing is allocated for a length that a stranger's index names before it was here.
    """
    start = validation.integer(f"{where}: start", start, minimum=0)
    length = validation.integer(f"{where}: length", length, minimum=0)
    if start + length > size:
        raise ShortReadError(
            f"{where} has {size} bytes; {length} from byte {start} were asked for. It was cut or replaced: copy it "
            "again, or write it again.",
            received=size,
            path=where,
        )
    return start, length
