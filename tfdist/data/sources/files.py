"""Files and folders by their names: local paths, and URLs through fsspec.

Example:
    >>> is_url("s3://bucket/a.csv"), is_url("a.csv")
    (True, False)
"""

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from tfdist.data.disk_errors import explained
from tfdist.errors import ConfigError, MissingDependencyError


class Entry(NamedTuple):
    """A file or a folder: its name, the path that opens it, bytes, and something that changes when it is written."""

    name: str
    path: str
    is_folder: bool
    size: int
    stamp: str


def spelled(path: str | os.PathLike[str]) -> str:
    """Return a path as text; ``file://`` URLs become local paths."""
    found = os.fspath(path)
    return found.removeprefix("file://") if found.startswith("file://") else found


def is_url(path: str) -> bool:
    """Return whether fsspec is asked for it."""
    return "://" in path


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return os.path.basename(path.rstrip("/"))


def is_folder(path: str) -> bool:
    """Return whether there is a folder of this name."""
    if not is_url(path):
        return os.path.isdir(path)
    store, inner = _store(path)
    return bool(store.isdir(inner))


def matches(pattern: str) -> list[str]:
    """Return what a path stands for: itself if it is there, else all that its wildcards match, sorted.

    Raises:
        ConfigError: nothing.
    """
    if is_url(pattern):
        store, inner = _store(pattern)
        found = [inner] if store.exists(inner) else store.glob(inner) if glob.has_magic(inner) else []
        names = sorted(store.unstrip_protocol(path) for path in found)
    else:
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    if not names:
        wildcard = "no file matches it." if glob.has_magic(pattern) else "there is no such file or folder."
        raise ConfigError(f"source is {pattern!r}; {wildcard} Check the path; relative ones begin at {os.getcwd()}.")
    return names


def entries(folder: str) -> list[Entry]:
    """Return what a folder holds, sorted by name; hidden names are left out."""
    if is_url(folder):
        store, inner = _store(folder)
        rows = [_remote(store, info) for info in store.ls(inner, detail=True) if info["name"].rstrip("/") != inner]
    else:
        with explained(Path(folder), "read"), os.scandir(folder) as found:
            rows = [_local(entry.name, entry.path) for entry in found if not entry.name.startswith(".")]
    return sorted(row for row in rows if not row.name.startswith("."))


def entry(path: str) -> Entry:
    """Return what is known of one file without reading it."""
    if is_url(path):
        store, inner = _store(path)
        return _remote(store, store.info(inner))
    return _local(name_of(path), path)


def opened(path: str) -> BinaryIO:
    """Open a file for reading bytes."""
    if is_url(path):
        store, inner = _store(path)
        return cast(BinaryIO, store.open(inner, "rb"))
    with explained(Path(path), "read"):
        return open(path, "rb")


def read_all(paths: list[str]) -> list[bytes]:
    """Return the bytes of some files, remote ones at the same time."""
    if paths and is_url(paths[0]):
        store, _ = _store(paths[0])
        inner = [store._strip_protocol(path) for path in paths]
        found = store.cat(inner)
        return [found[path] for path in inner] if isinstance(found, dict) else [found]
    contents = []
    for path in paths:
        with explained(Path(path), "read"), open(path, "rb") as file:
            contents.append(file.read())
    return contents


def identity(kind: str, paths: Iterable[str]) -> dict[str, Any]:
    """Return JSON that changes when one of the files is written anew."""
    rows = [entry(path) for path in paths]
    names = [row.name.encode(errors="backslashreplace").decode() for row in rows]  # also those that are no UTF-8
    return {
        "kind": kind,
        "files": [[name, row.size, row.stamp] for name, row in zip(names, rows, strict=True)],
    }


def _local(name: str, path: str) -> Entry:
    with explained(Path(path), "read"):
        status = os.stat(path)
    return Entry(name, path, os.path.isdir(path), status.st_size, str(status.st_mtime_ns))


def _remote(store: Any, info: dict[str, Any]) -> Entry:
    stamp = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or info.get("created")
    return Entry(
        name_of(info["name"]),
        store.unstrip_protocol(info["name"]),
        info["type"] == "directory",
        int(info.get("size") or 0),
        str(stamp or ""),
    )


def _store(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f"{url!r} needs fsspec, which is not installed; it opens URLs. Run: python -m pip install fsspec"
        ) from error
    try:
        found = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # a store whose own package is missing; an unknown protocol
        raise MissingDependencyError(f"{url!r} cannot be opened: {error}") from error
    return found[0], found[1]
