"""A folder with checkpoints in it: each appears at once and whole, what a killed process left is removed.

A checkpoint is made under a hidden name, brought to the disk, and renamed. Its maker holds a lock on it, which the
system frees when the maker ends, however it ends: that is how what was left is told from what is in work.
"""

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfdist.checkpoint import manifest as manifests
from tfdist.checkpoint.names import SUFFIX, is_step_name
from tfdist.data.disk_errors import explained
from tfdist.data.filenames import is_temporary, plain_name, temporary_name
from tfdist.errors import CorruptDataError

_BUFFER = 64 << 10  # for small arrays; larger pieces are written from where they lie
_TRIES = 100
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_log = logging.getLogger(__name__)


class LocalPlace:
    """A folder; see `tfdist.checkpoint.store.Place` for its methods.

    Args:
        folder: its path; it need not exist.
        durable: whether a checkpoint is on the disk, and not only in memory, before it counts.
    """

    keeps_names = True

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.url = str(folder)
        self._folder = folder
        self._durable = durable

    def names(self) -> list[str]:
        """Return the names of all folders of steps, unsorted."""
        try:
            with explained(self._folder, "read"), os.scandir(self._folder) as entries:
                return [e.name for e in entries if is_step_name(e.name) and e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def has(self, name: str, file: str) -> bool:
        """Return whether there is such a file in a step's folder."""
        return os.path.lexists(self._folder / name / file)

    def read(self, name: str, file: str, most: int) -> NDArray[np.uint8]:
        """Return the bytes of a file, mapped.

        Raises:
            MissingFileError: there is none.
            CorruptDataError: it is no regular file, or has more than ``most`` bytes.
        """
        path = self._folder / name / plain_name(file)
        with explained(path, "read"):
            # no link is followed, and a pipe without a writer does not block
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
                    raise CorruptDataError(f"{file} is no regular file.") from error
                raise
            try:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    raise CorruptDataError(f"{file} is no regular file.")
                if about.st_size > most:
                    raise CorruptDataError(f"{file} has {about.st_size} bytes, more than {most}.")
                if not about.st_size:
                    return np.empty(0, np.uint8)
                return np.frombuffer(mmap.mmap(descriptor, about.st_size, access=mmap.ACCESS_READ), np.uint8)
            finally:
                os.close(descriptor)

    def put(
        self,
        name: str,
        files: Sequence[tuple[str, Callable[[BinaryIO], None]]],
        *,
        on_ready: Callable[[Path | None], None],
    ) -> None:
        """Make a step's folder of these files at once, in place of one with the same name.

        Args:
            name: of the step.
            files: names and what writes them, the manifest last.
            on_ready: called when all is written, before it appears, with the folder where it is until then.
        """
        final = self._folder / name
        with explained(final, "written"):
            _make_folder(self._folder, durable=self._durable)
            temporary, claim = _claimed(self._folder, name)
            try:
                for file, fill in files:
                    self._write(temporary / file, fill)
                if self._durable:
                    os.fsync(claim)
                on_ready(temporary)
                _rename(temporary, final)
                if self._durable:
                    _sync(self._folder)
            finally:
                _remove_folder(temporary)  # it failed, or this is the one that was replaced
                os.close(claim)

    def _write(self, path: Path, fill: Callable[[BinaryIO], None]) -> None:
        with path.open("xb", buffering=_BUFFER) as file:
            fill(file)
            file.flush()
            if self._durable:
                os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a step's folder, its manifest first; files that are not ours stay, and the folder with them."""
        _remove_folder(self._folder / name)

    def clean(self) -> None:
        """Remove what killed processes left."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            left = [e.path for e in entries if is_temporary(e.name) and is_step_name(e.name[1:].split(".")[0])]
            for path in left:
                with suppress(OSError):  # its maker lives, or it has gone
                    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        _remove_folder(Path(path))
                        _log.info("Removed %s, which a process left that has ended.", path)
                    finally:
                        os.close(descriptor)

    def remove_if_empty(self) -> None:
        """Remove the folder itself, unless something is in it."""
        with suppress(OSError):
            os.rmdir(self._folder)


def _claimed(folder: Path, name: str) -> tuple[Path, int]:
    """A new hidden folder, and a descriptor that holds a lock on it."""
    for _ in range(_TRIES):
        temporary = folder / temporary_name(name)
        os.mkdir(temporary)
        try:
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # somebody cleaned up between the two calls
        if _is_locked(descriptor) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)  # the same
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks here: then nobody removes it either
    return True


def _rename(temporary: Path, final: Path) -> None:
    """Give a folder its name; one that has it already is exchanged for it, so that at no time there is neither."""
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
            continue  # somebody has removed it meanwhile
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise
            _remove_folder(final)  # file systems that cannot exchange, such as NFS
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _exchange(one: Path, other: Path) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _remove_folder(folder: Path) -> None:
    """Remove a folder and the files of a checkpoint in it, as far as that is possible: what stays does no harm."""
    with suppress(OSError):  # somebody else removes it, or it may not be removed, or holds files that are not ours
        # The folder itself, not its name: another process may give that to a new one at any moment.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for file in sorted(os.listdir(descriptor), key=lambda file: file != manifests.NAME):
                if file == manifests.NAME or file.endswith(SUFFIX):
                    with suppress(OSError):
                        os.unlink(file, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(folder)


def _make_folder(folder: Path, *, durable: bool) -> None:
    missing = []
    for place in (folder, *folder.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        if durable:
            _sync(place.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that keep directories otherwise
            raise
    finally:
        os.close(descriptor)
