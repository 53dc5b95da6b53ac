"""Access to files and folders by name, local or through fsspec; pointers of Git LFS and git-annex are refused."""

import glob
import io
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tfdist.errors import ConfigError
from tfdist.storage import files

_BUFFER = 1 << 20
_options: ContextVar[Mapping[str, Any]] = ContextVar("what the drivers of URLs take", default={})  # noqa: B039
LARGEST_BYTES = 1024
_BEGINNINGS = {
    b"version https://git-lfs.github.com/spec/": "git lfs pull",
    b"version https://hawser.github.com/spec/": "git lfs pull",
    b"/annex/objects/": "git annex get .",
}


class Entry(NamedTuple):
    """A file or a folder: its name, path, size in bytes, and a stamp that changes when it is written."""

    name: str
    path: str
    is_folder: bool
    size: int
    stamp: str


def spelled(path: str | os.PathLike[str]) -> str:
    """Return a path as text; ``file://`` URLs, whose characters may be escaped, become local paths."""
    found = os.fspath(path)
    return urllib.parse.unquote(found.removeprefix("file://")) if found.startswith("file://") else found


def is_url(path: str) -> bool:
    return "://" in path


def has_urls(source: Any) -> bool:
    paths = source if isinstance(source, (list, tuple)) else [source]
    return any(isinstance(path, (str, os.PathLike)) and is_url(spelled(path)) for path in paths)


@contextmanager
def driven_by(options: Mapping[str, Any] | None) -> Iterator[None]:
    """Pass these options to fsspec's drivers for every URL that is opened in a block."""
    token = _options.set(dict(options or {}))
    try:
        yield
    finally:
        _options.reset(token)


def name_of(path: str) -> str:
    return os.path.basename(path.rstrip("/"))


def is_folder(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    with _reading(path):
        store, inner = _store(path)
        return bool(store.isdir(inner))


def matches(pattern: str) -> list[str]:
    """Return the path itself if it exists, else all paths that its wildcards match, sorted."""
    if is_url(pattern):
        with _reading(pattern):
            store, inner = _store(pattern)
            found = [inner] if _is_there(store, inner) else store.glob(inner) if glob.has_magic(inner) else []
            names = sorted(store.unstrip_protocol(path) for path in found)
    else:
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    if not names:
        wildcard = "no file matches it." if glob.has_magic(pattern) else "there is no such file or folder."
        raise ConfigError(
            f"source is {pattern!r}; {wildcard} Check the path; relative ones begin at {os.getcwd()}.",
            name="source",
            received=pattern,
        )
    return names


def entries(folder: str) -> list[Entry]:
    """Return the content of a folder, sorted by name, without hidden names."""
    with _reading(folder):
        if is_url(folder):
            store, inner = _store(folder)
            rows = [_remote(store, info) for info in store.ls(inner, detail=True) if info["name"].rstrip("/") != inner]
        else:
            with os.scandir(folder) as found:
                rows = [_local(entry.name, entry.path) for entry in found if not entry.name.startswith(".")]
    return sorted(row for row in rows if not row.name.startswith("."))


def entry(path: str) -> Entry:
    """Return the entry of one file, without reading the file."""
    if is_url(path):
        with _reading(path):
            store, inner = _store(path)
            return _remote(store, store.info(inner))
    return _local(name_of(path), path)


def opened(path: str) -> BinaryIO:
    with _reading(path):
        if not is_url(path):
            return open(path, "rb")
        store, inner = _store(path)
        raw = files.ExplainedFile(store.open(inner, "rb"), lambda: _reading(path), owns=True)
        return io.BufferedReader(raw, _BUFFER)


def head(path: str, size: int) -> bytes:
    with opened(path) as file:
        return file.read(size)


def read_all(paths: list[str]) -> list[bytes]:
    """Return the bytes of some files; remote ones are read at the same time."""
    if paths and is_url(paths[0]):
        from tfdist.storage.remote_storage import ranges_of

        with _reading(paths[0]):
            store, _ = _store(paths[0])
            whole = [None] * len(paths)
            return ranges_of(store, [store._strip_protocol(path) for path in paths], whole, whole)
    contents = []
    for path in paths:
        with _reading(path), open(path, "rb") as file:
            contents.append(file.read())
    return contents


def identity(kind: str, paths: Iterable[str]) -> dict[str, Any]:
    """Return JSON that changes when one of the files is written anew."""
    rows = [entry(path) for path in paths]
    names = [row.name.encode(errors="backslashreplace").decode() for row in rows]  # also those that are no UTF-8
    return {"kind": kind, "files": [[name, row.size, row.stamp] for name, row in zip(names, rows, strict=True)]}


def are_stamped(identity: dict[str, Any]) -> bool:
    """Return whether an identity is certain to change: some stores report only the size of a file."""
    return "files" in identity and all(stamp for _, _, stamp in identity["files"])


def _is_there(store: Any, inner: str) -> bool:
    try:
        store.info(inner)  # `exists` of many drivers takes every error for a no
    except FileNotFoundError:
        return False
    return True


def _local(name: str, path: str) -> Entry:
    with _reading(path):
        status = os.stat(path)
    return Entry(name, path, os.path.isdir(path), status.st_size, str(status.st_mtime_ns))


def _remote(store: Any, info: dict[str, Any]) -> Entry:
    if info.get("size") is None and info["type"] == "file":  # in the listing of a web server
        info = store.info(info["name"])
    stamp = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or info.get("created")
    return Entry(
        name_of(info["name"]),
        store.unstrip_protocol(info["name"]),
        info["type"] == "directory",
        int(info.get("size") or 0),
        str(stamp or ""),
    )


def _store(url: str) -> tuple[Any, str]:
    from tfdist.storage.remote_storage import driver  # fsspec takes a while to load

    return driver(url, _options.get(), of="source")


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn errors of a disk or a driver into `StorageError`."""
    if is_url(path):
        from tfdist.storage import remote_storage

        with remote_storage.explained(path, "read", of="source"):
            yield
    else:
        with files.explained(Path(path), "read"):
            yield


def is_pointer(head: bytes) -> bool:
    return head.startswith(tuple(_BEGINNINGS))


def require_content(path: str, size: int | None = None) -> None:
    if 0 < (entry(path).size if size is None else size) <= LARGEST_BYTES:
        refuse(path, head(path, LARGEST_BYTES))


def refuse(name: str, head: bytes) -> None:
    for beginning, command in _BEGINNINGS.items():
        if head.startswith(beginning):
            raise ConfigError(
                f"{name} is a pointer to a file that was not fetched, so its examples are missing. Run `{command}` in "
                "its repository, or leave the file out.",
                path=name,
            )
