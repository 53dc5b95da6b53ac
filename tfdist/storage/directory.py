"""The `Storage` protocol, for data and checkpoints in local folders and in any store that fsspec reaches.

A storage is one flat directory. It has files with plain names (`tfdist.storage.files`), which appear whole or not at
all.
"""

import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.storage.block_cache import BlockCache
from tfdist.storage.files import FolderKind, NewFiles, OnReady
from tfdist.storage.local_storage import LocalStorage

__all__ = ["LocalStorage", "Storage", "storage"]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
_BROKEN_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/[^/]")


class Storage(Protocol):
    """A flat directory of files.

    Every method takes plain names only, and raises ConfigError for others. If the system or a service refuses
    something, StorageError names the file and the fix. A missing file raises MissingFileError, which is also a
    FileNotFoundError.
    """

    @property
    def url(self) -> str:
        """The directory as its user knows it."""

    @property
    def local(self) -> Path | None:
        """The folder, if the storage is a local one, or None."""

    @property
    def fetched(self) -> float:
        """The time at which bytes of a file last arrived, by `time.monotonic`; infinite if it is not known."""

    def names(self) -> list[str]:
        """Return the plain names of the files, sorted; none if there is no directory."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def state(self, name: str) -> Any:
        """Return the current state of a file: a value that differs whenever the file does."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``start``, or all that follow; ShortReadError if the file ends before that."""

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the bytes of each (name, start, length), in the order of ``ranges``, with few requests; see `read`."""

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Return a context that writes a file, which appears, whole and durable, only if the block ends well."""

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file that may not exist, durably; a newline is added if ``line`` does not end with one."""

    def remove(self, name: str) -> None:
        """Remove a file; do nothing if there is none."""

    def lock(self) -> AbstractContextManager[None]:
        """Return a context in which the caller is the only writer, if the storage can; an object store cannot.

        Raises:
            DeadlineError: another writer had the lock all the time.
        """


class FolderStorage(Storage, Protocol):
    """A storage that publishes folders: complete, or not there at all, whenever a process is killed.

    `keeps_names`: whether a file may have the same name in each publication, because folders appear at once. If not,
    its name ends with the mark of its publication, and the folder counts once its last file is there.
    """

    keeps_names: bool

    def folders(self) -> list[str]:
        """Return the plain names of the folders, sorted; none if there is no directory."""

    def folder(self, name: str) -> "FolderStorage":
        """Return the storage of a folder."""

    def array(self, name: str, most: int) -> NDArray[np.uint8]:
        """Return the bytes of a file, not to be written to; CorruptDataError if there are more than ``most``."""

    def publish(
        self, name: str, files: NewFiles, kind: FolderKind, *, mark: str, is_joint: bool, on_ready: OnReady
    ) -> None:
        """Make a folder of these files, and of those that others stage for a joint one; or make nothing."""

    def stage(self, name: str, files: NewFiles, *, mark: str) -> None:
        """Write the files of a folder that another process publishes."""

    def staged(self, name: str, file: str, *, mark: str) -> bytes | None:
        """Return the bytes of a file that `stage` wrote; None if there is none yet."""

    def is_staged(self, name: str, *, mark: str) -> bool:
        """Return whether `stage` was called in the same directory, by any process."""

    def unstage(self, name: str, *, mark: str) -> None:
        """Remove an empty folder that `stage` left, and the directory if nothing else is in it."""

    def remove_folder(self, name: str, kind: FolderKind) -> None:
        """Remove a folder as far as that is possible, the last file first."""

    def clean(self, kind: FolderKind, *, spare: str | None = None) -> None:
        """Remove the leftovers of killed processes, but no folder whose mark begins with ``spare``."""

    def remove_directory(self) -> None:
        """Remove the directory itself, unless something is in it."""


def storage(
    directory: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: BlockCache | None = None,
    follow_symlinks: bool = False,
    durable: bool = True,
) -> FolderStorage:
    """Return the storage of a directory, which need not exist; nothing is read or written yet.

    Without ``durable``, new files may be lost in a power failure, but not when a process is killed.
    """
    text = _text(directory)
    found = _URL.match(text)
    if found is None or found["scheme"].lower() == "file":
        if storage_options:
            raise ConfigError(
                f"storage_options are for remote stores; {text!r} is a local directory. Leave them out.",
                name="storage_options",
                path=text,
            )
        return LocalStorage(
            text if found is None else _path_of(text),
            url=text,
            follow_symlinks=validation.boolean("follow_symlinks", follow_symlinks),
            durable=durable,
        )
    from tfdist.storage.remote_storage import FsspecStorage  # fsspec takes a while to load

    return FsspecStorage(text, storage_options=storage_options, cache=cache)


def _text(directory: Any) -> str:
    if not isinstance(directory, (str, os.PathLike)) or not isinstance(os.fspath(directory), str):
        raise validation.mismatch("directory", directory, "a path or a URL, as str or Path.", kind=ConfigTypeError)
    text = validation.text("directory", os.fspath(directory))
    if "\0" in text:
        raise ConfigError(
            f"directory is {validation.shown(text)}; a path has no null character.", name="directory", received=text
        )
    broken = _BROKEN_URL.match(text)
    if broken and not os.path.lexists(f"{broken['scheme']}:"):
        raise ConfigError(
            f"directory is {text!r}; a URL has two slashes after its colon (a Path takes one away). Pass it as str: "
            f"{text.replace(':/', '://', 1)!r}.",
            name="directory",
            received=text,
        )
    return text


def _path_of(url: str) -> str:
    """Return the path that a file URL stands for; characters may be escaped in it, as by `Path.as_uri`."""
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise ConfigError(
            f"directory is {url!r}; a file URL is file:///path, with % before ? and # escaped.",
            name="directory",
            received=url,
        )
    return urllib.parse.unquote(parts.path)


class Overlay:
    """A `Storage` that reads some files of one directory and writes into another."""

    def __init__(self, files: Storage, names: Sequence[str], notes: Storage, *, url: str) -> None:
        self.url: str = url
        self.local: Path | None = files.local
        self._files = files
        self._names = frozenset(names)
        self._notes = notes

    def names(self) -> list[str]:
        return sorted(self._names.union(self._notes.names()))

    def size(self, name: str) -> int:
        return self._of(name).size(name)

    @property
    def fetched(self) -> float:
        return self._files.fetched

    def state(self, name: str) -> Any:
        return self._of(name).state(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._of(name).read(name, start, length)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        found = [b""] * len(ranges)
        for place in (self._files, self._notes):
            chosen = [number for number, (name, _, _) in enumerate(ranges) if self._of(name) is place]
            for number, data in zip(chosen, place.read_ranges([ranges[i] for i in chosen]), strict=True):
                found[number] = data
        return found

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        return self._notes.create(name)

    def append(self, name: str, line: bytes) -> None:
        self._notes.append(name, line)

    def remove(self, name: str) -> None:
        self._notes.remove(name)

    def lock(self) -> AbstractContextManager[None]:
        return self._notes.lock()

    def _of(self, name: str) -> Storage:
        return self._files if name in self._names else self._notes
