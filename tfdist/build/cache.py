"""Where wheels and logs are kept, and who may build: one at a time for each key, over all processes of this machine.

Example:
    >>> folder({"TFDIST_CACHE_DIR": "/data/tfdist"})
    PosixPath('/data/tfdist')
"""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError, DeadlineError, TfdistError

_LOOK_SECONDS = 0.2


def folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache: TFDIST_CACHE_DIR, else tfdist in XDG_CACHE_HOME, else in ~/.cache."""
    if environ.get("TFDIST_CACHE_DIR"):
        return Path(environ["TFDIST_CACHE_DIR"]).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or os.path.expanduser("~"), ".cache"))
    return Path(base, "tfdist").absolute()


@dataclass(frozen=True)
class Cache:
    """A writable folder of the cache."""

    root: Path

    @property
    def work(self) -> Path:
        """Where wheels are before they are put in place, and builds have their temporary folders."""
        return self.root / "work"

    @property
    def workplace(self) -> Path:
        """Where a build has its temporary folder; TensorFlow's flags for a compiler cannot carry a path with spaces.

        Raises:
            ConfigError: neither the cache nor the folder for temporary files has a path without spaces.
        """
        for place in (self.work, Path(tempfile.gettempdir())):
            if not any(sign.isspace() for sign in str(place)):
                return place
        raise ConfigError(
            f"the paths of the cache, {str(self.root)!r}, and of the folder for temporary files, {str(place)!r}, both "
            "have spaces, which Horovod's build cannot carry. Name another for one of them: export TMPDIR=/path"
        )

    def log(self, key: str) -> Path:
        """Return where the log of the last failed build of this key is."""
        return self.root / "logs" / f"{key}.log"

    def wheel(self, key: str, name: str) -> Path:
        """Return where the wheel of this key is, or will be."""
        return self.root / "wheels" / key / name

    def find(self, key: str, name: str) -> Path | None:
        """Return the wheel of this key; None when there is none, or when the file is damaged."""
        wheel = self.wheel(key, name)
        try:
            with zipfile.ZipFile(wheel) as archive:
                return wheel if archive.testzip() is None else None
        except (OSError, zipfile.BadZipFile, EOFError):
            return None

    def put(self, wheel: Path, key: str, name: str) -> Path:
        """Put a wheel in its place at once: others see the old file, or the whole new one."""
        place = self.wheel(key, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open("rb") as source, tempfile.NamedTemporaryFile(dir=self.work, delete=False) as copy:
            try:
                shutil.copyfileobj(source, copy)
                copy.flush()
                os.fsync(copy.fileno())
                os.chmod(copy.name, 0o644)
                os.replace(copy.name, place)
            except BaseException:
                os.unlink(copy.name)
                raise
        return place


def open_cache(environ: Mapping[str, str]) -> Cache:
    """Return the cache, with its folders made and tried.

    Raises:
        ConfigError: the folder cannot be written, or its path cannot be passed to the programs of a build.
    """
    root = folder(environ)
    cure = "Name another: export TFDIST_CACHE_DIR=/path"
    if any(sign in str(root) for sign in ":;\n"):
        raise ConfigError(
            f"the cache folder is {str(root)!r}; colons, semicolons and line ends divide lists of paths in the "
            f"programs of a build, so its path must have none. {cure}"
        )
    try:
        for name in ("work", "logs", "wheels", "locks"):
            (root / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root / name):
                pass
    except OSError as error:
        raise ConfigError(f"the cache folder {root} cannot be written ({_reason(error)}). {cure}") from error
    return Cache(root)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@contextlib.contextmanager
def locked(cache: Cache, key: str, *, timeout_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a key; the system releases it when the process that holds it ends, however it ends.

    Args:
        cache: whose key.
        key: what is built.
        timeout_seconds: how long to wait for a process that holds it.
        on_wait: called once, with who holds it, when there is someone to wait for.
    Raises:
        DeadlineError: the lock was not free in time.
        TfdistError: the file system knows no locks.
    """
    path = cache.root / "locks" / f"{key}.lock"
    with path.open("a+", encoding="utf-8") as file:

        def holder() -> str:
            file.seek(0)
            return f"process {file.read().strip() or '?'}"

        _wait(file.fileno(), path, holder, timeout_seconds=timeout_seconds, on_wait=on_wait)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def locked_folder(place: Path, *, timeout_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a folder, in which nothing is written for that; otherwise like `locked`."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        _wait(descriptor, place, lambda: "another process", timeout_seconds=timeout_seconds, on_wait=on_wait)
        yield
    finally:
        os.close(descriptor)


def _wait(
    descriptor: int,
    path: Path,
    holder: Callable[[], str],
    *,
    timeout_seconds: float,
    on_wait: Callable[[str], None],
) -> None:
    deadline, waiting = time.monotonic() + timeout_seconds, False
    while not _take(descriptor, path):
        if not waiting:
            on_wait(holder())
            waiting = True
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"{holder()} has been doing the same for more than {timeout_seconds:g} s. End it, then try again."
            )
        time.sleep(_LOOK_SECONDS)


def _take(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise TfdistError(
            f"{path} cannot be locked ({_reason(error)}); its file system may know no locks. Use a folder on another: "
            "for the cache, export TFDIST_CACHE_DIR=/path."
        ) from error
    return True
