"""A local directory as a storage: files and folders appear whole or not at all, with one writer at a time."""

import ctypes
import errno
import functools
import io
import logging
import math
import mmap
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import filelock
import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import CorruptDataError, DeadlineError, StorageError
from tfdist.storage import local_folders
from tfdist.storage.files import (
    ExplainedFile,
    FolderKind,
    NewFiles,
    OnReady,
    State,
    claim,
    explained,
    is_plain,
    is_temporary,
    make_directory,
    plain_name,
    remove_abandoned,
    staging_name,
    state_of,
    storage_error,
    sync_directory,
    temporary_name,
    within,
)

LOCK_NAME = ".lock"
LOCK_SECONDS = 6 * 3600.0  # writing many examples takes hours, and a lock ends with its process
_SILENT_SECONDS = 1.0  # a longer wait is reported
_BUFFER = 1 << 20
_SMALL_BUFFER = 64 << 10  # for small arrays; larger pieces are written from where they are
# no link is followed, and a pipe without a writer does not block
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_READ = 1 << 30  # Linux reads at most 2 GiB at once
_log = logging.getLogger(__name__)


class LocalStorage:
    """A storage in a local directory; see `tfdist.storage.directory.FolderStorage` for its methods.

    A file must be a regular one in the directory. A symbolic link that leads out of it is refused unless links are
    followed; pipes and devices, which could block a reader, always are. Nothing is written through a link. A new file
    or folder has a hidden name until it is on the disk; then it is renamed, and the directory is flushed to the disk.
    The next writer removes the leftovers of a killed one.
    """

    keeps_names = True

    def __init__(
        self, directory: str | os.PathLike[str], *, url: str = "", follow_symlinks: bool = False, durable: bool = True
    ) -> None:
        self._follows, self._durable = follow_symlinks, durable
        self.local: Path = Path(os.path.abspath(os.path.expanduser(directory)))
        self.url: str = url or str(self.local)
        self.fetched: float = math.inf
        self._paths: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.local)!r})"

    def names(self) -> list[str]:
        found = []
        with suppress(FileNotFoundError), explained(self.local, "read"), os.scandir(self.local) as entries:
            for entry in filter(lambda entry: is_plain(entry.name), entries):
                with suppress(OSError):  # a loop of links
                    found += [entry.name] if entry.is_file() else []
        return sorted(found)

    def size(self, name: str) -> int:
        with self._open(name) as descriptor:
            return os.fstat(descriptor).st_size

    def state(self, name: str) -> State:
        path = self._paths.get(name)
        if path is None:  # a reader asks for every batch
            path = self._paths[name] = str(self.local / plain_name(name))
        try:
            return state_of(os.stat(path))
        except OSError as error:
            raise storage_error(error, Path(path), "read") from error

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self._open(name) as descriptor:
            if length is None:
                length = max(os.fstat(descriptor).st_size - start, 0)
            return self._read(descriptor, name, start, length)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read the ranges, opening each file once."""
        found = [b""] * len(ranges)
        by_file: dict[str, list[int]] = {}
        for i, (name, _, _) in enumerate(ranges):
            by_file.setdefault(name, []).append(i)
        for name, wanted in by_file.items():
            with self._open(name) as descriptor:
                for i in sorted(wanted, key=lambda i: ranges[i][1]):
                    found[i] = self._read(descriptor, name, *ranges[i][1:])
        return found

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self.local / plain_name(name)
        temporary = path.with_name(temporary_name(name))
        descriptor = -1
        try:
            with explained(path, "written"):
                make_directory(self.local, durable=self._durable)
                descriptor = _claimed(temporary)
            # not its own descriptor, so that a caller may close the file
            opened = io.FileIO(descriptor, "wb", closefd=False)
            raw = ExplainedFile(opened, functools.partial(explained, path, "written"))
            file = io.BufferedWriter(raw, _BUFFER)
            try:
                yield cast(BinaryIO, file)
                if not file.closed:
                    file.flush()
            finally:
                raw.close()  # what is still in the buffer is not written any more
            with explained(path, "written"):
                if self._durable:
                    os.fsync(descriptor)
                os.replace(temporary, path)
                if self._durable:
                    sync_directory(self.local)
        finally:
            with suppress(OSError):  # renamed already, or the folder has gone
                os.unlink(temporary)
            if descriptor >= 0:
                os.close(descriptor)

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file that may not exist, durably.

        If a killed writer left a line unfinished, it is ended first. A line that cannot be written leaves the file
        unchanged.
        """
        path = self.local / plain_name(name)
        with explained(path, "written"):
            make_directory(self.local)
            is_new = not os.path.lexists(path)
            path = path if is_new else self._inside(name, follows=False)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
            try:
                _need_regular(descriptor, path)
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                text = (b"\n" if torn else b"") + line + (b"" if line.endswith(b"\n") else b"\n")
                try:
                    while text:
                        text = text[os.write(descriptor, text) :]
                    os.fsync(descriptor)
                except BaseException:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
            if is_new:
                sync_directory(self.local)

    def remove(self, name: str) -> None:
        path = self.local / plain_name(name)
        with explained(path, "removed"), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            sync_directory(self.local)

    @contextmanager
    def lock(self, *, timeout_seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Be the only writer for the block; the system frees the lock when its process ends.

        The new holder removes the leftovers of killed writers. A thread that has the lock must not ask for it again.
        """
        path = self.local / LOCK_NAME
        timeout_seconds = validation.number("timeout_seconds", timeout_seconds, minimum=0)
        with explained(path, "written"):
            make_directory(self.local)
            guard = filelock.FileLock(path)
            silent = min(_SILENT_SECONDS, timeout_seconds)
            try:
                if not _acquired(guard, silent):
                    _log.warning("Waiting for another writer, which has locked %s ...", path)
                    if not _acquired(guard, timeout_seconds - silent):
                        raise DeadlineError(
                            f"{path} was locked by another writer for {timeout_seconds:g} seconds. Wait until that "
                            f"writer has finished, or end it (`lsof {path}` shows it); a lock ends with its process.",
                            path=path,
                        )
            except NotImplementedError as error:
                raise StorageError(f"{path} cannot be locked: its file system knows no locks. Use another.") from error
        try:
            with os.scandir(self.local) as entries:
                left = [e.path for e in entries if is_temporary(e.name) and e.is_file(follow_symlinks=False)]
            for leftover in left:
                remove_abandoned(Path(leftover), os.unlink)
            yield
        finally:
            guard.release()

    def folders(self) -> list[str]:
        try:
            with explained(self.local, "read"), os.scandir(self.local) as entries:
                return sorted(e.name for e in entries if is_plain(e.name) and e.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def folder(self, name: str) -> "LocalStorage":
        return LocalStorage(self.local / plain_name(name), follow_symlinks=self._follows, durable=self._durable)

    def array(self, name: str, most: int) -> NDArray[np.uint8]:
        """Return the bytes of a file as a memory map, which outlives the file's removal. No link is followed."""
        path = self.local / plain_name(name)
        with explained(path, "read"):
            try:
                descriptor = os.open(path, _READ)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
                    raise CorruptDataError(f"{name} is not a regular file.") from error
                raise
            try:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    raise CorruptDataError(f"{name} is not a regular file.")
                if about.st_size > most:
                    raise CorruptDataError(f"{name} has {about.st_size} bytes, more than {most}.")
                return mapped(descriptor, about.st_size)
            finally:
                os.close(descriptor)

    def publish(
        self, name: str, files: NewFiles, kind: FolderKind, *, mark: str, is_joint: bool, on_ready: OnReady
    ) -> None:
        """Make a folder under a hidden name, and rename it, in place of one with the same name."""
        final = self.local / name
        with self._making(name, mark if is_joint else None) as (temporary, descriptor):
            try:
                self._fill(temporary, files)
                for passing in temporary.glob(f"*{kind.passing}") if is_joint else ():
                    passing.unlink()
                if self._durable:
                    os.fsync(descriptor)
                on_ready(temporary)
                local_folders.rename(temporary, final, kind)
                if self._durable:
                    sync_directory(self.local)
            finally:
                local_folders.remove_folder(temporary, kind)  # it failed, or this is the one that was replaced

    def stage(self, name: str, files: NewFiles, *, mark: str) -> None:
        with self._making(name, mark) as (temporary, _):
            self._fill(temporary, files)

    def staged(self, name: str, file: str, *, mark: str) -> bytes | None:
        with explained(self.local / name, "read"), suppress(FileNotFoundError):
            return (self.local / staging_name(name, mark) / file).read_bytes()
        return None

    def is_staged(self, name: str, *, mark: str) -> bool:
        return (self.local / staging_name(name, mark)).is_dir()

    def unstage(self, name: str, *, mark: str) -> None:
        with suppress(OSError):
            (self.local / staging_name(name, mark)).rmdir()
        self.remove_directory()

    def remove_folder(self, name: str, kind: FolderKind) -> None:
        local_folders.remove_folder(self.local / name, kind)

    def clean(self, kind: FolderKind, *, spare: str | None = None) -> None:
        with suppress(OSError), os.scandir(self.local) as entries:
            left = [entry.path for entry in entries if local_folders.is_left(entry.name, kind, spare)]
            for path in left:
                remove_abandoned(Path(path), lambda path: local_folders.remove_folder(path, kind))

    def remove_directory(self) -> None:
        with suppress(OSError):
            os.rmdir(self.local)

    @contextmanager
    def _making(self, name: str, mark: str | None) -> Iterator[tuple[Path, int]]:
        """Yield a hidden folder, with a descriptor that holds a lock on it."""
        with explained(self.local / name, "written"):
            make_directory(self.local, durable=self._durable)
            temporary, descriptor = local_folders.claimed_folder(self.local, name, mark)
            try:
                yield temporary, descriptor
            finally:
                os.close(descriptor)

    def _fill(self, folder: Path, files: NewFiles) -> None:
        for name, fill in files:
            (folder / name).unlink(missing_ok=True)  # of an attempt that has failed
            with (folder / name).open("xb", buffering=_SMALL_BUFFER) as file:
                fill(file)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())

    def _inside(self, name: str, *, follows: bool) -> Path:
        """Return the file behind a name, links followed; refuse one outside of the directory unless that is allowed."""
        path = self.local / plain_name(name)
        with explained(path, "read"):
            try:
                found = path.resolve(strict=True)
            except RuntimeError as error:  # a loop of links, in Python 3.11 and 3.12
                raise OSError(errno.ELOOP, "") from error
            if not follows and not found.is_relative_to(self.local.resolve()):
                raise StorageError(
                    f"{path} is a symbolic link to {found}, outside of {self.local}; files elsewhere are not "
                    "read. Copy the file into the directory; or, where you trust the link, pass follow_symlinks=True "
                    "(--follow-symlinks).",
                    path=path,
                )
        return found

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self._inside(name, follows=self._follows)
        with explained(self.local / name, "read"):
            descriptor = os.open(path, _READ)
            try:
                _need_regular(descriptor, path)
                yield descriptor
            finally:
                os.close(descriptor)

    def _read(self, descriptor: int, name: str, start: int, length: int) -> bytes:
        where, parts = str(self.local / name), []
        start, length = within(where, start, length, os.fstat(descriptor).st_size)
        while length > 0:
            part = os.pread(descriptor, min(length, _LARGEST_READ), start)
            if not part:  # it shrank meanwhile
                within(where, start, length, os.fstat(descriptor).st_size)
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _claimed(temporary: Path) -> int:
    """Open a new file, locked while its writer lives, which distinguishes it from a leftover."""
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            claim(descriptor)
            if os.path.lexists(temporary):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process cleaned up between the two calls


def _need_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise StorageError(f"{path} is not a regular file; a data set consists of regular files. Remove it.", path=path)


def _acquired(guard: filelock.BaseFileLock, seconds: float) -> bool:
    try:
        guard.acquire(timeout=seconds)
    except filelock.Timeout:
        return False
    return True


def mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Return the first ``size`` bytes of an open file, read-only; the descriptor may be closed at once.

    The standard library's `mmap` keeps a descriptor for each map (until Python 3.13), and a process may have 1,024 of
    them. The map ends with the last array that shows it. Bytes behind the end of the file must not be touched.
    """
    if not size:
        return np.empty(0, np.uint8)
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno() or errno.ENOMEM
        raise OSError(number, os.strerror(number))
    content: Any = (ctypes.c_char * size).from_address(address)
    # not at the end of the process: threads may read up to then
    weakref.finalize(content, libc.munmap, address, size).atexit = False
    found = np.frombuffer(content, np.uint8)
    found.flags.writeable = False
    return found


@functools.cache
def _libc() -> Any:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    found.munmap.restype, found.munmap.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]
    return found
