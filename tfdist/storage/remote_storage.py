"""Any store of fsspec as a storage: requests joined, objects whole or absent, answers checked for length."""

import functools
import io
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any, BinaryIO, cast

import fsspec
import numpy as np
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.registry import known_implementations
from numpy.typing import NDArray

from tfdist.errors import (
    ConfigError,
    CorruptDataError,
    MissingDependencyError,
    MissingFileError,
    StorageError,
    TfdistError,
)
from tfdist.storage.block_cache import BlockCache, File
from tfdist.storage.files import (
    RUN_DIGITS,
    ExplainedFile,
    FolderKind,
    NewFiles,
    OnReady,
    is_plain,
    mark_of,
    plain_name,
    temporary_name,
    within,
)
from tfdist.storage.ranges import Range, coalesce

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_PACKAGES = {"hdfs": "pyarrow", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "oss": "ossfs", "oci": "ocifs"}
_OPTIONS = {"directory": "storage_options", "source": "source_options"}
GAP_BYTES = 256 << 10  # a request costs about as long as this many bytes take
LARGEST_REQUEST = 8 << 20  # larger ones are cut, and fetched side by side
#: Stores with buckets, where an object appears when it is complete, and directories are made of names.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "obs", "tos", "oci"})
# keys of a driver's entry whose value changes with the content; the first that is there counts
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "checksum", "mtime", "LastModified", "last_modified", "created")
_BUFFER = 1 << 20


def driver(url: str, options: Mapping[str, Any], *, of: str = "directory") -> tuple[Any, str]:
    """Return the driver of a URL, and its name for the directory."""
    protocol = url.split("://", 1)[0].split("::", 1)[0].lower()
    try:
        fsspec.get_filesystem_class(protocol)
        fs, root = url_to_fs(url, **options)
    except ImportError as error:
        package = f"'tfdist[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else _PACKAGES.get(protocol, "")
        said = known_implementations.get(protocol, {}).get("err")
        command = f"Install it: pip install {package}" if package else said
        raise MissingDependencyError(
            f"{url} needs a driver that is missing ({error}). {command}", name=protocol, path=url
        ) from error
    except ValueError as error:
        if protocol in known_implementations:
            raise ConfigError(
                f"{of} is {url!r}; {error}. Look at the URL and at {_OPTIONS[of]}.", name=of, received=url, path=url
            ) from error
        raise ConfigError(
            f"{of} is {url!r}; {protocol!r} is not a kind of store that fsspec knows. Use s3://, gs://, hdfs://, "
            "memory:// or another of fsspec's.",
            name=of,
            received=url,
            path=url,
        ) from error
    except TypeError as error:
        raise ConfigError(
            f"{_OPTIONS[of]} are {sorted(options)}; the driver of {url} refused them: {error}.",
            name=_OPTIONS[of],
            received=sorted(options),
            path=url,
        ) from error
    return fs, str(root)


@contextmanager
def explained(where: str, doing: str, *, of: str = "directory") -> Iterator[None]:
    """Turn any error of a driver into `StorageError`."""
    try:
        yield
    except TfdistError:
        raise
    except FileNotFoundError as error:
        kind = StorageError if doing == "written" else MissingFileError
        raise kind(f"{where} cannot be {doing}: it does not exist. Check the URL.", path=where) from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        is_refused = isinstance(error, PermissionError) or "redential" in f"{type(error).__name__} {error}"
        advice = (
            f"Check the credentials and their rights (environment, configuration files, {_OPTIONS[of]})."
            if is_refused
            else f"Check the network, the URL and {_OPTIONS[of]}."
        )
        raise StorageError(f"{where} cannot be {doing}: {reason}. {advice}", path=where) from error


def ranges_of(fs: Any, paths: list[str], starts: list[Any], ends: list[Any]) -> list[bytes]:
    """Return the bytes of these ranges of files, None for a whole file; the names are no patterns, as for `cat`."""
    answers = fs.cat_ranges(paths, starts, ends, on_error="raise")
    for answer in answers:
        if isinstance(answer, BaseException):  # asynchronous drivers of earlier releases of fsspec return errors
            raise answer
    return list(answers)


class FsspecStorage:
    """A storage in any store of fsspec; see `tfdist.storage.directory.FolderStorage` for its methods.

    Sizes are requested once, and again after `names`, after reading a whole file, and after writing here; a file that
    shrinks meanwhile raises ShortReadError. The driver repeats failed requests. On an object store a new object appears
    when it is complete; elsewhere a file is renamed when it is complete. A killed writer leaves invisible parts in S3:
    let a rule of the bucket remove incomplete uploads. Only one process may write.
    """

    local = None
    keeps_names = False

    def __init__(
        self, url: str, *, storage_options: Mapping[str, Any] | None = None, cache: BlockCache | None = None
    ) -> None:
        self.url: str = url.rstrip("/") if not url.endswith("://") else url
        self._options = dict(storage_options or {})
        self._cache = cache
        self._files: dict[str, File] = {}
        self.fetched: float = -math.inf
        self._fs, self._root = driver(self.url, self._options)
        self._pid = os.getpid()
        protocol = self.url.split("://", 1)[0].split("::", 1)[0].lower()
        self._is_object_store = protocol in OBJECT_STORES
        if self._is_object_store and not self._root.strip("/"):
            raise ConfigError(
                f"directory is {url!r}; it must name a bucket, as {protocol}://bucket/folder does.",
                name="directory",
                received=url,
            )

    def __repr__(self) -> str:
        return f"FsspecStorage({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(FsspecStorage, storage_options=self._options, cache=self._cache), (self.url,)

    def names(self) -> list[str]:
        listed = [
            (name, entry)
            for name, entry in self._listed("file")
            if self._path(name).strip("/") == entry["name"].strip("/")
        ]
        # a web server's listing has no sizes: they are requested one by one
        self._files = {name: self._file(name, entry) for name, entry in listed if entry.get("size") is not None}
        return sorted(name for name, _ in listed)

    def folders(self) -> list[str]:
        return sorted(name for name, _ in self._listed("directory"))

    def _listed(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return plain names and the driver's entries for the directory's contents; none if there is no directory."""
        fs = self._driver()
        with self._explained(self.url, "read"):
            fs.invalidate_cache(self._root)
            try:
                entries = fs.ls(self._root, detail=True)
            except FileNotFoundError:
                self._need_bucket("read")
                entries = []
            found = [(entry["name"], entry) for entry in entries if entry["type"] == kind]
        if kind == "directory":
            found = [(name.rstrip("/"), entry) for name, entry in found]
        named = [(name.rsplit("/", 1)[-1], entry) for name, entry in found]
        return [(name, entry) for name, entry in named if is_plain(name)]

    def remove_directory(self) -> None:
        """Remove the directory if it is empty; an object store has no directories."""
        if not self._is_object_store:
            with suppress(Exception):  # it is not there
                fs = self._driver()
                fs.invalidate_cache(self._root)
                if not fs.ls(self._root, detail=False):  # some drivers remove what is in it
                    fs.rmdir(self._root)

    def size(self, name: str) -> int:
        return self._known(name).size

    def state(self, name: str) -> File:
        """Return the size and version of a file, which are requested anew."""
        self._files.pop(name, None)
        return self._known(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            self._files.pop(name, None)
            length = max(self.size(name) - start, 0)
        return self.read_ranges([(name, start, length)])[0]

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        if len({name for name, _, _ in ranges} - self._files.keys()) > 2:
            self.names()  # one request for all sizes
        located = []
        for name, start, length in ranges:
            file = self._known(name)
            located.append((file, *within(f"{self.url}/{name}", start, length, file.size)))
        if self._cache is None:
            return self._fetch([(file.name, start, length) for file, start, length in located], GAP_BYTES)
        return self._cache.read_ranges(located, lambda wanted: self._fetch(wanted, 0))

    def _fetch(self, ranges: Sequence[Range], gap: int) -> list[bytes]:
        plan = coalesce(ranges, gap=gap, largest=LARGEST_REQUEST)
        if not plan.requests:
            return plan.results([])
        names = sorted({name for name, _, _ in plan.requests})
        where = f"{self.url}/{names[0]}" + (f" and {len(names) - 1} others" if len(names) > 1 else "")
        with self._explained(where, "read"):
            answers = ranges_of(
                self._driver(),
                [self._path(name) for name, _, _ in plan.requests],
                [start for _, start, _ in plan.requests],
                [start + length for _, start, length in plan.requests],
            )
            self.fetched = time.monotonic()
        return plan.results(answers)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        fs, path, where = self._driver(), self._path(name), f"{self.url}/{name}"
        target = path if self._is_object_store else self._path_of(temporary_name(name))
        self._files.pop(name, None)
        with self._explained(where, "written"):
            if not self._is_object_store:
                fs.makedirs(self._root, exist_ok=True)
            remote = fs.open(target, "wb")
        is_whole = False
        try:
            raw = ExplainedFile(remote, lambda: self._explained(where, "written"))
            file = io.BufferedWriter(raw, _BUFFER)
            try:
                yield cast(BinaryIO, file)
                if not file.closed:
                    file.flush()
            finally:
                raw.close()  # what is still in the buffer is not written any more
            with self._explained(where, "written"):
                remote.close()  # an object appears here
                if target != path:
                    _rename(fs, target, path)
                is_whole = True
        finally:
            if not is_whole:
                _discard(fs, remote, target, is_named=target == path)
            with suppress(Exception):
                fs.invalidate_cache(self._root)

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file that may not exist, by writing the file again."""
        try:
            before = self.read(name)
        except MissingFileError:
            before = b""
        with self.create(name) as file:
            file.write(before + (b"\n" if before and not before.endswith(b"\n") else b""))
            file.write(line + (b"" if line.endswith(b"\n") else b"\n"))

    def remove(self, name: str) -> None:
        path = self._path(name)
        self._files.pop(name, None)
        with self._explained(f"{self.url}/{name}", "removed"), suppress(FileNotFoundError, KeyError):
            self._driver().rm_file(path)

    def lock(self) -> "nullcontext[None]":
        """Do nothing: stores have no locks that end with their holder. Only one process may write."""
        return nullcontext()

    def folder(self, name: str) -> "FsspecStorage":
        return FsspecStorage(f"{self.url}/{plain_name(name)}", storage_options=self._options)

    def array(self, name: str, most: int) -> NDArray[np.uint8]:
        size = self.size(name)
        if size > most:
            raise CorruptDataError(f"{name} has {size} bytes, more than {most}.")
        return np.frombuffer(self.read(name, 0, size), np.uint8)

    def publish(
        self, name: str, files: NewFiles, kind: FolderKind, *, mark: str, is_joint: bool, on_ready: OnReady
    ) -> None:
        """Make a folder that counts once its last file is there.

        Folders cannot be renamed at once here, so files have marks: a folder of the same name stays valid until its
        last file is replaced.
        """
        folder, is_whole = self.folder(name), False
        before = set(folder.names())
        seen = set(before)
        try:
            for file, fill in files:
                if file == kind.last:
                    on_ready(None)
                seen.add(file)
                with folder.create(file) as remote:
                    fill(remote)
            is_whole = True
        finally:
            if is_joint:
                with suppress(StorageError):  # what is left does no harm, and an error here would hide the other
                    seen.update(folder.names())
            for file in seen:
                is_ours = mark_of(file) == mark
                is_next = is_joint and mark_of(file)[:RUN_DIGITS] == mark[:RUN_DIGITS] and mark_of(file) > mark
                goes = (not is_whole or file.endswith(kind.passing)) if is_ours else is_whole and file in before
                if file.endswith(kind.ours) and goes and not is_next:
                    with suppress(StorageError):  # no manifest names it, so it is not read
                        folder.remove(file)
            if not is_whole:
                folder.remove_directory()

    def stage(self, name: str, files: NewFiles, *, mark: str) -> None:
        folder = self.folder(name)
        for file, fill in files:
            with folder.create(file) as remote:
                fill(remote)

    def staged(self, name: str, file: str, *, mark: str) -> bytes | None:
        try:
            return self.folder(name).read(file)
        except MissingFileError:
            return None

    def is_staged(self, name: str, *, mark: str) -> bool:
        return not self.url.startswith("memory:")  # which other processes do not see

    def unstage(self, name: str, *, mark: str) -> None:
        """Do nothing: `stage` makes no empty folder."""

    def remove_folder(self, name: str, kind: FolderKind) -> None:
        folder = self.folder(name)
        with suppress(StorageError):  # the next save tries again
            for file in kind.removed(folder.names()):
                folder.remove(file)
            folder.remove_directory()

    def clean(self, kind: FolderKind, *, spare: str | None = None) -> None:
        """Do nothing: a folder without its last file is removed like an old one."""

    def _driver(self) -> Any:
        if self._pid != os.getpid():  # connections and their threads do not outlive a fork
            self._fs, self._root = driver(self.url, self._options)
            self._pid = os.getpid()
        return self._fs

    def _path(self, name: str) -> str:
        return self._path_of(plain_name(name))

    def _path_of(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _known(self, name: str) -> File:
        known = self._files.get(name)  # once: another thread may forget the file at any moment
        if known is None:
            path = self._path(name)
            with self._explained(f"{self.url}/{name}", "read"):
                fs = self._driver()
                fs.invalidate_cache(self._root)
                found = fs.info(path)
            if found["type"] != "file":
                raise MissingFileError(f"{self.url}/{name} is a directory, no file. Check the URL.")
            if found.get("size") is None:
                raise StorageError(f"{self.url}/{name} has no known size: its server does not state it. Use another.")
            known = self._files[name] = self._file(name, found)
        return known

    def _file(self, name: str, found: Mapping[str, Any]) -> File:
        version = next((found[key] for key in _VERSIONS if found.get(key)), "")
        shown = version.timestamp() if isinstance(version, datetime) else version
        return File(name, int(found["size"]), f"{self.url} {shown}")

    @contextmanager
    def _explained(self, where: str, doing: str) -> Iterator[None]:
        """Turn errors of drivers into `StorageError`, and distinguish a missing bucket from a missing object."""
        with explained(where, doing):
            try:
                yield
            except FileNotFoundError as error:
                if not isinstance(error, TfdistError):
                    self._need_bucket(doing)
                raise

    def _need_bucket(self, doing: str) -> None:
        """Raise the error for a missing bucket if an object is missing for that reason."""
        if not self._is_object_store:
            return
        bucket, exists = self._root.strip("/").split("/", 1)[0], True
        with suppress(Exception):  # no right to ask: then the bucket is taken to exist
            exists = self._driver().exists(bucket)
        if not exists:
            raise StorageError(
                f"{self.url} cannot be {doing}: there is no bucket {bucket!r}, or these credentials do not see it. "
                "Create it, or correct the URL.",
                name=bucket,
                path=self.url,
            )


def _rename(fs: Any, source: str, target: str) -> None:
    if type(fs).mv is AbstractFileSystem.mv:  # fsspec's own copies, and takes names for patterns
        fs.cp_file(source, target)
        fs.rm_file(source)
        return
    try:
        fs.mv(source, target)
        is_left = _exists(fs, source)  # WebHDFS says in its answer alone that it has not renamed
    except OSError:
        if not (_exists(fs, source) and _exists(fs, target)):
            raise
        is_left = True
    if is_left:  # some do not rename over a file
        fs.rm_file(target)
        fs.mv(source, target)


def _exists(fs: Any, path: str) -> bool:
    fs.invalidate_cache(path.rpartition("/")[0])
    return bool(fs.exists(path))


def _discard(fs: Any, remote: Any, target: str, *, is_named: bool) -> None:
    """Discard an incomplete file; it must never appear, even when the driver's object is collected."""
    with suppress(Exception):
        remote.discard() if is_named else remote.close()
    if is_named:
        with suppress(Exception):  # io.IOBase has `closed` without a setter; a driver's object has its own
            remote.closed = True
    else:
        with suppress(Exception):
            fs.rm_file(target)
