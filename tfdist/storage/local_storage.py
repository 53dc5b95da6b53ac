"""A local folder as a storage: files made whole or not at all, one writer at a time, nothing read from elsewhere."""

import errno
import io
import logging
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import filelock

from tfdist import validation
from tfdist.errors import DeadlineError, StorageError
from tfdist.storage.files import (
    claim,
    explained,
    is_plain,
    is_temporary,
    make_directory,
    plain_name,
    remove_abandoned,
    sync_directory,
    temporary_name,
    within,
)

LOCK_NAME = ".lock"
LOCK_SECONDS = 600.0
_SILENT_SECONDS = 1.0  # a wait that takes longer is talked about
_BUFFER = 1 << 20
_LARGEST_READ = 1 << 30  # Linux reads at most 2 GiB at once
_log = logging.getLogger(__name__)


class LocalStorage:
    """A folder; see `tfdist.storage.directory.Storage` for its methods.

    A file must be a regular one and lie in the folder: a symbolic link that leads out of it is refused unless links are
    to be followed, and so are pipes and devices always, which could block a reader. Nothing is written through a link.
    A new file is written under a hidden name, brought to the disk, renamed, and the folder is brought to the disk. What
    a killed writer leaves is removed by the next one that takes the lock.
    """

    def __init__(self, directory: str | os.PathLike[str], *, url: str = "", follow_symlinks: bool = False) -> None:
        self._follows = follow_symlinks
        self.local: Path = Path(os.path.abspath(os.path.expanduser(directory)))
        self.url: str = url or str(self.local)
        self.fetched: float = math.inf

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.local)!r})"

    def names(self) -> list[str]:
        """Return the plain names of the files, sorted; none where there is no directory."""
        try:
            with explained(self.local, "read"), os.scandir(self.local) as entries:
                return sorted(entry.name for entry in entries if is_plain(entry.name) and _is_file(entry))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with self._open(name) as descriptor:
            return os.fstat(descriptor).st_size

    def state(self, name: str) -> tuple[int, int, int, int]:
        """Return device, inode, size and time of change in ns of a file."""
        with explained(self.local / plain_name(name), "read"):
            about = os.stat(self.local / name)
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``start``, or all that follow."""
        with self._open(name) as descriptor:
            if length is None:
                length = max(os.fstat(descriptor).st_size - start, 0)
            return self._read(descriptor, name, start, length)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the bytes of each (name, start, length), in the order of ``ranges``; each file is opened once."""
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
        """Write a file in a block: visible, whole and durable when the block ends well; never otherwise."""
        path = self.local / plain_name(name)
        temporary = path.with_name(temporary_name(name))
        descriptor = -1
        try:
            with explained(path, "written"):
                make_directory(self.local)
                descriptor = _claimed(temporary)
            # its own descriptor, so that a caller who closes the file does no harm
            raw = _Explained(descriptor, path)
            file = io.BufferedWriter(raw, _BUFFER)
            try:
                yield cast(BinaryIO, file)
                if not file.closed:
                    file.flush()
            finally:
                raw.close()  # what is still in the buffer is not written any more
            with explained(path, "written"):
                os.fsync(descriptor)
                os.replace(temporary, path)
                sync_directory(self.local)
        finally:
            with suppress(OSError):  # renamed already, or the folder has gone
                os.unlink(temporary)
            if descriptor >= 0:
                os.close(descriptor)

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file that may not exist, durably.

        If the last line has no end, because its writer was killed, it gets one first. A line that cannot be written
        leaves the file as it was.
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
                    _write_all(descriptor, text)
                    os.fsync(descriptor)
                except BaseException:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
            if is_new:
                sync_directory(self.local)

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""
        path = self.local / plain_name(name)
        with explained(path, "removed"), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            sync_directory(self.local)

    @contextmanager
    def lock(
        self, *, timeout_seconds: float = LOCK_SECONDS, on_wait: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """Be the only writer for a block; the system frees the lock when its process ends, however it ends.

        Whoever gets it removes what killed writers left. The lock is not for a thread that has it already.
        """
        path = self.local / LOCK_NAME
        timeout_seconds = validation.number("timeout_seconds", timeout_seconds, minimum=0)
        with explained(path, "written"):
            make_directory(self.local)
            guard = filelock.FileLock(path)
            silent = min(_SILENT_SECONDS, timeout_seconds)
            try:
                if not _acquired(guard, silent):
                    (on_wait or _log.warning)(f"Waiting for another writer, which has locked {path} ...")
                    if not _acquired(guard, timeout_seconds - silent):
                        raise DeadlineError(
                            f"{path} was locked by another writer for {timeout_seconds:g} seconds. Wait until it has "
                            f"finished, or end it (`lsof {path}` shows it); the lock of a process that ended is free.",
                            path=path,
                        )
            except NotImplementedError as error:
                raise StorageError(f"{path} cannot be locked: its file system knows no locks. Use another.") from error
        try:
            self._remove_leftovers()
            yield
        finally:
            guard.release()

    def _remove_leftovers(self) -> None:
        """Remove temporary files whose writer has gone: nobody holds their lock."""
        with os.scandir(self.local) as entries:
            left = [
                entry.path for entry in entries if is_temporary(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        for path in left:
            remove_abandoned(Path(path), os.unlink)

    def _inside(self, name: str, *, follows: bool) -> Path:
        """The file behind a name, links followed; refused where it lies outside of the folder and may not."""
        path = self.local / plain_name(name)
        with explained(path, "read"):
            try:
                found = path.resolve(strict=True)
            except RuntimeError as error:  # a loop of links, in Python 3.11 and 3.12
                raise OSError(errno.ELOOP, "") from error
            if not follows and not found.is_relative_to(self.local.resolve()):
                raise StorageError(
                    f"{path} is a symbolic link to {found}, outside of {self.local}; files that lie elsewhere are not "
                    "read. Copy the file into the directory; or, where you trust the link, pass follow_symlinks=True "
                    "(--follow-symlinks).",
                    path=path,
                )
        return found

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self._inside(name, follows=self._follows)
        with explained(self.local / name, "read"):
            # without blocking: the file could be a pipe that has no writer
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
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


class _Explained(io.RawIOBase):
    """A descriptor to write to, whose errors say what to do; closing it leaves the descriptor open."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any, /) -> int:
        with explained(self._path, "written"):
            return os.write(self._descriptor, data)


def _claimed(temporary: Path) -> int:
    """A new file, locked as long as its writer lives; that is how others tell what was left from what is in work."""
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            claim(descriptor)
            if os.path.lexists(temporary):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody cleaned up between the two calls


def _need_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise StorageError(f"{path} is no regular file; a data set consists of regular files. Remove it.", path=path)


def _acquired(guard: filelock.BaseFileLock, seconds: float) -> bool:
    try:
        guard.acquire(timeout=seconds)
    except filelock.Timeout:
        return False
    return True


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError:  # a loop of links
        return False


def _write_all(descriptor: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(descriptor, view) :]
