"""The common parts of all storages: plain names, marks of unfinished folders, durable files, and helpful errors.

A local file or folder that is being made has a hidden name, and its maker holds a lock on it, which the system frees
however the maker ends.
"""

import ctypes
import errno
import fcntl
import io
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tfdist import validation
from tfdist.errors import ConfigError, MissingFileError, ShortReadError, StorageError, TfdistError

#: In bytes of UTF-8. File systems take 255; a temporary file's name is longer than that of the file it becomes.
LONGEST_NAME = 200
_HINT = "Names of files are plain: no folder, no leading dot, no control character."
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)
#: hexadecimal digits of a mark, which tells publications apart, and of its beginning, which tells runs apart
MARK_DIGITS, RUN_DIGITS = 16, 8
_MARKED = re.compile(rf".*-([0-9a-f]{{{MARK_DIGITS}}})\.[a-z]+", re.DOTALL)
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_log = logging.getLogger(__name__)

#: names of files, and what writes each
NewFiles = Iterable[tuple[str, Callable[[BinaryIO], None]]]
#: is called once the files of a folder are written, and before it counts, with its path if it is local
OnReady = Callable[[Path | None], None]

#: what differs once a local file was replaced or changed: its device, inode, size, and time of change in ns
State = tuple[int, int, int, int]


@dataclass(frozen=True)
class FolderKind:
    """The content of published folders: their names (``is_name``) and their files.

    ``last`` is the file that makes a folder count: written last, removed first. Files that end with one of ``ours`` are
    removed with the folder, those with ``passing`` once it is complete.
    """

    is_name: Callable[[str], bool]
    last: str
    ours: tuple[str, ...]
    passing: str

    def removed(self, files: Iterable[str]) -> list[str]:
        """Return the files to remove with a folder, in this order; files of others stay."""
        found = [file for file in files if file == self.last or file.endswith(self.ours)]
        return sorted(found, key=lambda file: file != self.last)


def is_plain(name: str) -> bool:
    """Return whether `plain_name` accepts the name."""
    return bool(name.strip()) and not _unfit(name)


def plain_name(name: str) -> str:
    """Return the name if it can only name a file in a directory, locally and on an object store; else raise."""
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
    """Return a new temporary name for the future file ``name``; it is not plain, so it is never taken for data."""
    return f".{name}.{secrets.token_hex(8)}.tmp"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a local file whole or not at all, by another name first; readers see the old file or the new one."""
    temporary = path.with_name(temporary_name(path.name))
    try:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_durably(path: Path, text: str, *, mode: int) -> None:
    """Write a local file to the disk, whole or not at all, before anything depends on it.

    What a killed attempt has left is replaced, so that no secret stays under another name.
    """
    make_directory(path.parent)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def state_of(about: os.stat_result) -> State:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def is_temporary(name: str) -> bool:
    """Return whether a name has the form that `temporary_name` makes."""
    return bool(_TEMPORARY.fullmatch(name))


def staging_name(name: str, mark: str) -> str:
    """Return the name of a folder until it is published, which `is_temporary` recognizes."""
    return f".{name}.{mark}.tmp"


def mark_of(file: str) -> str:
    """Return the mark in a file's name, as in ``arrays-0123456789abcdef.safetensors``; "" if there is none."""
    found = _MARKED.fullmatch(file)
    return found.group(1) if found else ""


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn the system's errors in the block, which is ``doing`` something to ``path``, into `StorageError`."""
    try:
        yield
    except TfdistError:
        raise
    except OSError as error:
        raise storage_error(error, path, doing) from error


class ExplainedFile(io.RawIOBase):
    """A file whose reads and writes run in a context that explains errors; ``owns``: whether it closes the raw file."""

    def __init__(self, raw: Any, explained: Callable[[], AbstractContextManager[Any]], *, owns: bool = False) -> None:
        self._raw, self._explained, self._owns = raw, explained, owns

    def readable(self) -> bool:
        return bool(self._raw.readable())

    def writable(self) -> bool:
        return bool(self._raw.writable())

    def seekable(self) -> bool:
        return bool(self._raw.seekable())

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        return int(self._raw.tell())

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any, /) -> int:
        with self._explained():
            data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        with self._explained():
            written = self._raw.write(bytes(data))  # drivers take nothing else, and some do not return a number
        return len(data) if written is None else int(written)

    def close(self) -> None:
        if self._owns and not self.closed:
            self._raw.close()
        super().close()


def storage_error(error: OSError, path: Path, doing: str) -> StorageError:
    """Return an explanation of ``error``, because of which ``path`` could not be ``doing`` ("read", "written")."""
    kind = MissingFileError if error.errno == errno.ENOENT and doing != "written" else StorageError
    reason = os.strerror(error.errno) if error.errno else str(error)
    free = f" ({_free(path)} free there)" if doing == "written" else ""
    message = f"{path} cannot be {doing}: {reason}{free}. {advice(error.errno)}"
    return kind(error.errno, message, path=path) if error.errno else kind(message, path=path)


def _free(path: Path) -> str:
    for place in (path, *path.parents):
        with suppress(OSError):
            found = os.statvfs(place)
            return size_text(found.f_bavail * found.f_frsize)
    return "unknown space"


def advice(number: int | None) -> str:
    if number in _FULL:
        return "Free some space, or raise the quota, or choose a directory on another disk; then run again."
    if number == errno.EFBIG:
        return (
            "The file exceeds the limit of the file system or of `ulimit -f`: use smaller shards, or raise the limit."
        )
    if number in _FORBIDDEN:
        return f"User {os.geteuid()} may not do that here: change the rights, or choose another directory."
    if number in (errno.ENOTDIR, errno.EEXIST):
        return "A part of the path is a file: choose another directory."
    if number == errno.EISDIR:
        return "A directory has this name: remove it, or choose another directory."
    if number == errno.ENOENT:
        return "Check the name, and whether something removed it."
    if number in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open: raise `ulimit -n`."
    return "Check in the system's log (dmesg) that the disk is sound and mounted."


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    unit = min((size.bit_length() - 1) // 10, 6)
    return f"{size / (1 << 10 * unit):.1f} {'KMGTPE'[unit - 1]}iB"


def make_directory(path: Path, *, durable: bool = True) -> None:
    """Make a folder and its parents, durably by default."""
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
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that keep directories otherwise
            raise
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """Flush everything that was written to the file system of a descriptor: cheaper than to flush many files."""
    if getattr(ctypes.CDLL(None), "syncfs", lambda _: -1)(descriptor):
        os.sync()


def claim(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an unfinished file or folder while the descriptor is open; return False if another process has the lock."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks here: then no process removes it either
    return True


def remove_abandoned(path: Path, remove: Callable[[Path], None]) -> None:
    """Remove an unfinished file or folder if its maker has gone, which the missing lock shows."""
    with suppress(OSError):  # its maker lives, or has finished meanwhile
        # reading is enough for a lock; O_NONBLOCK because a pipe without a writer would block
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
            _log.info("Removed %s, which a process left that has ended.", path)
        finally:
            os.close(descriptor)


def parsed_manifest(data: bytes, form: str, fields: Mapping[int, AbstractSet[str]], *, largest: int) -> dict[str, Any]:
    """Return the JSON of a manifest after checking its format, its version, and the fields that this version has."""
    if len(data) > largest:
        raise ConfigError(f"it has {len(data)} bytes; at most {largest} are read.", received=len(data))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON ({error}).") from None
    if not isinstance(found, dict) or found.get("format") != form:
        raise ConfigError(f'it has no "format": "{form}", so it describes something else.', name="format")
    version = found.get("version")
    if type(version) is not int or version not in fields:
        raise ConfigError(
            f"it has version {validation.shown(version)} of the format; this tfdist reads versions up to "
            f"{max(fields)}. Install the tfdist that wrote it, or a later one.",
            name="version",
            received=validation.shown(version),
        )
    if found.keys() != fields[version]:
        shown = validation.shown(sorted(found))
        raise ConfigError(f"its fields are {shown}; they must be {sorted(fields[version])}.", received=shown)
    return found


def within(where: str, start: int, length: int, size: int) -> tuple[int, int]:
    """Return ``start`` and ``length`` as plain ints if they are in a file of ``size`` bytes; else raise.

    Nothing is allocated for the length in an untrusted index before this check.
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
