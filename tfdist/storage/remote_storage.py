"""Any store that fsspec reaches, as a storage: requests joined, objects whole or absent, answers checked for length."""

import io
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any, BinaryIO, cast

import fsspec
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.registry import known_implementations

from tfdist import validation
from tfdist.errors import ConfigError, MissingDependencyError, MissingFileError, StorageError, TfdistError
from tfdist.storage.block_cache import BlockCache, File
from tfdist.storage.files import is_plain, plain_name, temporary_name, within
from tfdist.storage.local_storage import LOCK_SECONDS
from tfdist.storage.ranges import Range, coalesce

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_PACKAGES = {"hdfs": "pyarrow", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "oss": "ossfs", "oci": "ocifs"}
_OPTIONS = {"directory": "storage_options", "source": "source_options"}
GAP_BYTES = 256 << 10  # a request costs about as long as this many bytes take
LARGEST_REQUEST = 8 << 20  # larger ones are cut, and fetched side by side
#: Stores with buckets, where an object appears when it is complete, and directories are made of names.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "obs", "tos", "oci"})
# of what drivers tell about an object, the first that is there; it differs when the content does
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "checksum", "mtime", "LastModified", "last_modified", "created")
_BUFFER = 1 << 20


def driver(url: str, options: Mapping[str, Any], *, of: str = "directory") -> tuple[Any, str]:
    """Return the driver of a URL, and what the driver calls the place."""
    protocol = url.split("://", 1)[0].split("::", 1)[0].lower()
    try:
        fsspec.get_filesystem_class(protocol)
        fs, root = url_to_fs(url, **options)
    except ImportError as error:
        package = f"'tfdist[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else _PACKAGES.get(protocol, "")
        command = (
            f"Install it: pip install {package}" if package else known_implementations.get(protocol, {}).get("err")
        )
        raise MissingDependencyError(
            f"{url} needs a driver that is missing ({error}). {command}", name=protocol, path=url
        ) from error
    except ValueError as error:
        if protocol in known_implementations:
            raise ConfigError(
                f"{of} is {url!r}; {error}. Look at the URL and at {_OPTIONS[of]}.", name=of, received=url, path=url
            ) from error
        raise ConfigError(
            f"{of} is {url!r}; {protocol!r} is no kind of store that fsspec knows. Use s3://, gs://, hdfs://, "
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
    """Turn what drivers raise in a block, which is anything, into `StorageError`."""
    try:
        yield
    except TfdistError:
        raise
    except FileNotFoundError as error:
        kind = StorageError if doing == "written" else MissingFileError
        raise kind(f"{where} cannot be {doing}: there is none. Look whether the URL is right.", path=where) from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        raise StorageError(
            f"{where} cannot be {doing}: {reason}. {_advice(error, _OPTIONS[of])}", path=where
        ) from error


def _advice(error: Exception, options: str) -> str:
    if isinstance(error, PermissionError) or "redential" in f"{type(error).__name__} {error}":
        return f"Look at the credentials and their rights (environment, configuration files, {options})."
    return f"Look at the network, the URL and {options}."


class FsspecStorage:
    """A directory of any store of fsspec; see `tfdist.storage.directory.Storage` for its methods.

    Sizes are asked for once, and again after `names`, after reading a whole file, and after writing here; a file that
    shrinks meanwhile raises ShortReadError. Failed requests are repeated by the driver. On an object store a new object
    appears when it is complete; elsewhere a file gets its name when it is complete. A writer of S3 that is killed
    leaves parts that nobody sees: let a rule of the bucket remove incomplete uploads.
    """

    local = None

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache: BlockCache | None = None,
        gap: int = GAP_BYTES,
        largest: int = LARGEST_REQUEST,
    ) -> None:
        self.url: str = url.rstrip("/") if not url.endswith("://") else url
        self._options = dict(storage_options or {})
        self._cache = cache
        self._gap = validation.integer("gap", gap, minimum=0)
        self._largest = validation.integer("largest", largest, minimum=1)
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
        return _storage, (self.url, self._options, self._cache, self._gap, self._largest)

    def names(self) -> list[str]:
        """Return the plain names of the files, sorted; none where there is no directory."""
        fs, found = self._driver(), {}
        with self._explained(self.url, "read"):
            fs.invalidate_cache(self._root)
            try:
                entries = fs.ls(self._root, detail=True)
            except FileNotFoundError:
                self._need_bucket("read")
                entries = []
            for entry in entries:
                name = entry["name"].rsplit("/", 1)[-1]
                if (
                    entry["type"] == "file"
                    and is_plain(name)
                    and self._path(name).strip("/") == entry["name"].strip("/")
                ):
                    found[name] = self._file(name, entry)
        self._files = dict(found)
        return sorted(found)

    def folders(self) -> list[str]:
        """Return the plain names of the directories in this one, sorted; none where there is no directory."""
        fs = self._driver()
        with self._explained(self.url, "read"):
            fs.invalidate_cache(self._root)
            try:
                entries = fs.ls(self._root, detail=True)
            except FileNotFoundError:
                self._need_bucket("read")
                entries = []
            names = [entry["name"].rstrip("/").rsplit("/", 1)[-1] for entry in entries if entry["type"] == "directory"]
        return sorted(name for name in names if is_plain(name))

    def remove_directory(self) -> None:
        """Remove the directory itself where nothing is in it; an object store knows none."""
        if not self._is_object_store:
            with suppress(Exception):  # it is not there
                fs = self._driver()
                fs.invalidate_cache(self._root)
                if not fs.ls(self._root, detail=False):  # some drivers remove what is in it
                    fs.rmdir(self._root)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return self._known(name).size

    def state(self, name: str) -> File:
        """Return size and version of a file, which are asked for."""
        self._files.pop(name, None)
        return self._known(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``start``, or all that follow in the file as it is now."""
        if length is None:
            self._files.pop(name, None)
            length = max(self.size(name) - start, 0)
        return self.read_ranges([(name, start, length)])[0]

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the bytes of each (name, start, length), in the order of ``ranges``."""
        if len({name for name, _, _ in ranges} - self._files.keys()) > 2:
            self.names()  # one request for all sizes
        located = []
        for name, start, length in ranges:
            file = self._known(name)
            located.append((file, *within(f"{self.url}/{name}", start, length, file.size)))
        if self._cache is None:
            return self._fetch([(file.name, start, length) for file, start, length in located], self._gap)
        return self._cache.read_ranges(located, lambda wanted: self._fetch(wanted, 0))

    def _fetch(self, ranges: Sequence[Range], gap: int) -> list[bytes]:
        plan = coalesce(ranges, gap=gap, largest=self._largest)
        if not plan.requests:
            return plan.results([])
        names = sorted({name for name, _, _ in plan.requests})
        where = f"{self.url}/{names[0]}" + (f" and {len(names) - 1} others" if len(names) > 1 else "")
        with self._explained(where, "read"):
            answers = self._driver().cat_ranges(
                [self._path(name) for name, _, _ in plan.requests],
                [start for _, start, _ in plan.requests],
                [start + length for _, start, length in plan.requests],
                on_error="raise",
            )
            self.fetched = time.monotonic()
        return plan.results(answers)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Write a file in a block: visible and whole when the block ends well; never otherwise."""
        fs, path, where = self._driver(), self._path(name), f"{self.url}/{name}"
        target = path if self._is_object_store else self._path_of(temporary_name(name))
        self._files.pop(name, None)
        with self._explained(where, "written"):
            if not self._is_object_store:
                fs.makedirs(self._root, exist_ok=True)
            remote = fs.open(target, "wb")
        is_whole = False
        try:
            raw = _Upload(remote, lambda: self._explained(where, "written"))
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
        """Remove a file; nothing happens where there is none."""
        path = self._path(name)
        self._files.pop(name, None)
        with self._explained(f"{self.url}/{name}", "removed"), suppress(FileNotFoundError, KeyError):
            self._driver().rm_file(path)

    def lock(
        self, *, timeout_seconds: float = LOCK_SECONDS, on_wait: Callable[[str], None] | None = None
    ) -> "nullcontext[None]":
        """Do nothing: stores know no locks that end with their holder. See to it that one process writes."""
        return nullcontext()

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
        if name not in self._files:
            path = self._path(name)
            with self._explained(f"{self.url}/{name}", "read"):
                fs = self._driver()
                fs.invalidate_cache(self._root)
                found = fs.info(path)
            if found["type"] != "file":
                raise MissingFileError(f"{self.url}/{name} is a directory, no file. Look whether the URL is right.")
            self._files[name] = self._file(name, found)
        return self._files[name]

    def _file(self, name: str, found: Mapping[str, Any]) -> File:
        version = next((found[key] for key in _VERSIONS if found.get(key)), "")
        shown = version.timestamp() if isinstance(version, datetime) else version
        return File(name, int(found["size"]), f"{self.url} {shown}")

    @contextmanager
    def _explained(self, where: str, doing: str) -> Iterator[None]:
        """Turn what drivers raise into `StorageError`; a missing bucket is told from a missing object."""
        with explained(where, doing):
            try:
                yield
            except FileNotFoundError as error:
                if not isinstance(error, TfdistError):
                    self._need_bucket(doing)
                raise

    def _need_bucket(self, doing: str) -> None:
        """Raise the error that a missing object has when its bucket is missing."""
        if not self._is_object_store:
            return
        bucket, exists = self._root.strip("/").split("/", 1)[0], True
        with suppress(Exception):  # no right to ask: then the bucket is taken to exist
            exists = self._driver().exists(bucket)
        if not exists:
            raise StorageError(
                f"{self.url} cannot be {doing}: there is no bucket {bucket!r}, or these credentials do not see it. "
                "Make it, or correct the URL.",
                name=bucket,
                path=self.url,
            )


class _Upload(io.RawIOBase):
    """A driver's file to write to, whose errors say what to do; closing it does not close the driver's file."""

    def __init__(self, remote: Any, explained: Callable[[], Any]) -> None:
        self._remote, self._explained = remote, explained

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        with self._explained():
            self._remote.write(bytes(data))
        return len(data)


def _storage(url: str, options: dict[str, Any], cache: BlockCache | None, gap: int, largest: int) -> FsspecStorage:
    return FsspecStorage(url, storage_options=options, cache=cache, gap=gap, largest=largest)


def _rename(fs: Any, source: str, target: str) -> None:
    if type(fs).mv is AbstractFileSystem.mv:  # fsspec's own copies, and takes names for patterns
        fs.cp_file(source, target)
        fs.rm_file(source)
        return
    try:
        fs.mv(source, target)
    except FileExistsError:  # some do not rename over a file
        fs.rm_file(target)
        fs.mv(source, target)


def _discard(fs: Any, remote: Any, target: str, *, is_named: bool) -> None:
    """Give up a file that is not complete; it must not appear, not even when the driver's object is collected."""
    with suppress(Exception):
        remote.discard() if is_named else remote.close()
    if is_named:
        with suppress(Exception):  # io.IOBase has `closed` without a setter; a driver's object has its own
            remote.closed = True
    else:
        with suppress(Exception):
            fs.rm_file(target)
