"""A folder with checkpoints in it: each appears at once and whole, what a killed process left is removed.

A checkpoint is made under a hidden name, brought to the disk, and renamed. Its maker holds a lock on it, which the
system frees when the maker ends, however it ends: that is how what was left is told from what is in work.
"""

import ctypes
import errno
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfdist.checkpoint import checkpoint_manifest as manifests
from tfdist.checkpoint.checkpoint_manifest import RECEIPT, hidden_name, is_file_of_checkpoint, is_step_name, step_name
from tfdist.errors import CorruptDataError
from tfdist.storage.files import (
    claim,
    explained,
    is_temporary,
    make_directory,
    plain_name,
    remove_abandoned,
    sync_directory,
    temporary_name,
)

_BUFFER = 64 << 10  # for small arrays; larger pieces are written from where they lie
_TRIES = 100
_TURN_SECONDS = 0.001  # for somebody who removes a folder to be done with it
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class LocalPlace:
    """A folder; see `tfdist.checkpoint.checkpoint_store.Place` for its methods."""

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
        """Return the bytes of a file, mapped."""
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
        files: Iterable[tuple[str, Callable[[BinaryIO], None]]],
        *,
        mark: str,
        is_joint: bool,
        on_ready: Callable[[Path | None], None],
    ) -> None:
        """Make a step's folder of these files at once, in place of one with the same name."""
        final = self._folder / name
        with explained(final, "written"):
            make_directory(self._folder, durable=self._durable)
            temporary, claim = _claimed(self._folder, name, mark if is_joint else None)
            try:
                for file, fill in files:
                    self._write(temporary / file, fill)
                for receipt in temporary.glob(f"*{RECEIPT}") if is_joint else ():
                    receipt.unlink()
                if self._durable:
                    os.fsync(claim)
                on_ready(temporary)
                _rename(temporary, final)
                if self._durable:
                    sync_directory(self._folder)
            finally:
                _remove_folder(temporary)  # it failed, or this is the one that was replaced
                os.close(claim)

    def put_part(self, name: str, files: Iterable[tuple[str, Callable[[BinaryIO], None]]], *, mark: str) -> None:
        """Write files of a step's folder that another process makes."""
        with explained(self._folder / name, "written"):
            make_directory(self._folder, durable=self._durable)
            temporary, claim = _claimed(self._folder, name, mark)
            try:
                for file, fill in files:
                    self._write(temporary / file, fill)
            finally:
                os.close(claim)

    def staged(self, name: str, file: str, *, mark: str) -> bytes | None:
        """Return the bytes of a small file that `put_part` has written; None where there is none yet."""
        with explained(self._folder / name, "read"), suppress(FileNotFoundError):
            return (self._folder / hidden_name(name, mark) / file).read_bytes()
        return None

    def _write(self, path: Path, fill: Callable[[BinaryIO], None]) -> None:
        with path.open("xb", buffering=_BUFFER) as file:
            fill(file)
            file.flush()
            if self._durable:
                os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a step's folder, its manifest first; files that are not ours stay, and the folder with them."""
        _remove_folder(self._folder / name)

    def clean(self, *, spare: str | None = None) -> None:
        """Remove what killed processes left."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            left = [
                e.path
                for e in entries
                if is_temporary(e.name)
                and is_step_name(e.name[1:].split(".")[0])
                and not (spare and e.name.split(".")[2].startswith(spare))
            ]
            for path in left:
                remove_abandoned(Path(path), _remove_folder)

    def remove_if_empty(self) -> None:
        """Remove the folder itself, unless something is in it."""
        with suppress(OSError):
            os.rmdir(self._folder)

    def leave_sign(self, run: str) -> None:
        """Make an empty hidden folder, which `clean` removes where its maker was killed."""
        with explained(self._folder, "written"):
            make_directory(self._folder, durable=self._durable)
            self._sign(run).mkdir(exist_ok=True)

    def has_sign(self, run: str) -> bool:
        """Return whether that folder is there."""
        return self._sign(run).is_dir()

    def remove_sign(self, run: str) -> None:
        """Remove it, and the directory if nothing else is in it."""
        with suppress(OSError):
            self._sign(run).rmdir()
        self.remove_if_empty()

    def _sign(self, run: str) -> Path:
        return self._folder / hidden_name(step_name(0), f"{run}{0:08x}")


def _claimed(folder: Path, name: str, mark: str | None) -> tuple[Path, int]:
    """A hidden folder, and a descriptor that holds a lock on it: a new one, or the one that several know by a mark."""
    for _ in range(_TRIES):
        temporary = folder / (temporary_name(name) if mark is None else hidden_name(name, mark))
        with nullcontext() if mark is None else suppress(FileExistsError):
            os.mkdir(temporary)
        try:
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # somebody cleaned up between the two calls
        if claim(descriptor, shared=mark is not None) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)  # the same
        time.sleep(_TURN_SECONDS)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


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
                if file == manifests.NAME or is_file_of_checkpoint(file):
                    with suppress(OSError):
                        os.unlink(file, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(folder)
