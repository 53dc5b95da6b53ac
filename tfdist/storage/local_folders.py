"""Unfinished local folders: claimed under a hidden name, renamed at once, and removed when their maker is gone."""

import ctypes
import errno
import os
import time
from contextlib import nullcontext, suppress
from pathlib import Path

from tfdist.storage.files import FolderKind, claim, is_temporary, staging_name, temporary_name

_TRIES = 100
_TURN_SECONDS = 0.001  # for another process to finish the removal of a folder
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def claimed_folder(folder: Path, name: str, mark: str | None) -> tuple[Path, int]:
    """Return a hidden folder, new or shared by a mark, and a descriptor that holds a lock on it."""
    for _ in range(_TRIES):
        temporary = folder / (temporary_name(name) if mark is None else staging_name(name, mark))
        with nullcontext() if mark is None else suppress(FileExistsError):
            os.mkdir(temporary)
        try:
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another process cleaned up between the two calls
        if claim(descriptor, shared=mark is not None) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)  # the same
        time.sleep(_TURN_SECONDS)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def rename(temporary: Path, final: Path, kind: FolderKind) -> None:
    """Give a folder its name; a folder that has this name is exchanged for it, so that one always exists."""
    for _ in range(_TRIES):
        try:
            os.rename(temporary, final)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            _exchange(temporary, final)
            return
        except FileNotFoundError:
            continue  # another process has removed it meanwhile
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise
            remove_folder(final, kind)  # file systems that cannot exchange, such as NFS
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _exchange(one: Path, other: Path) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remove_folder(folder: Path, kind: FolderKind) -> None:
    """Remove a folder and its own files, as far as possible; leftovers do no harm."""
    with suppress(OSError):  # another process removes it, or it may not be removed, or holds files of others
        # The folder itself, not its name: another process may give that to a new one at any moment.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for file in kind.removed(os.listdir(descriptor)):
                with suppress(OSError):
                    os.unlink(file, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(folder)


def is_left(name: str, kind: FolderKind, spare: str | None) -> bool:
    """Return whether a killed process may have left this unfinished folder."""
    if not is_temporary(name) or not kind.is_name(name[1:].split(".")[0]):
        return False
    return not (spare and name.split(".")[2].startswith(spare))
