"""The user's cache folder, and locks across all processes of this machine.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError, DeadlineError, TfdistError
from tfdist.variables import CACHE_DIR

# Never removed: a process may hold a lock by its file, and running jobs and warm processes are found by their sockets.
IN_USE = ("jobs", "locks", "warm")
# Has a folder for each build that runs, and what builds have left that were ended in the middle: only that is removed.
WORK = "work"

_LOOK_SECONDS = 0.2
_STALE_SECONDS = 24 * 3600.0


def folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache: TFDIST_CACHE_DIR, else tfdist in XDG_CACHE_HOME, else in ~/.cache."""
    if named := CACHE_DIR.read(environ):
        return named
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or os.path.expanduser("~"), ".cache"))
    return Path(base, "tfdist").absolute()


def make(root: Path, names: tuple[str, ...]) -> None:
    """Make folders in the cache, and try to write a file in each."""
    try:
        for name in names:
            (root / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root / name):
                pass
    except OSError as error:
        raise ConfigError(
            f"the cache folder {root} cannot be written ({_reason(error)}). Name another: export "
            "TFDIST_CACHE_DIR=/path",
            name=CACHE_DIR.name,
            path=root,
        ) from error


def put(source: Path, place: Path, *, work: Path) -> Path:
    """Copy a file to its place atomically: readers see the old file or the whole new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as whole, tempfile.NamedTemporaryFile(dir=work, delete=False) as copy:
        try:
            shutil.copyfileobj(whole, copy)
            copy.flush()
            os.fsync(copy.fileno())
            os.chmod(copy.name, 0o644)
            os.replace(copy.name, place)
        except BaseException:
            os.unlink(copy.name)
            raise
    return place


def stale(place: Path) -> list[Path]:
    """Return the entries of a folder of temporary folders that are a day old or older, as after a power failure."""
    found = []
    for entry in place.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it at this moment
            if time.time() - entry.stat().st_mtime > _STALE_SECONDS:
                found.append(entry)
    return found


def remove_stale(place: Path) -> None:
    for entry in stale(place):
        with contextlib.suppress(OSError):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A folder of the cache, with the number of its files and their bytes."""

    name: str
    files: int
    size: int


def kept(root: Path) -> list[Kept]:
    """The folders of the cache that `clean` may remove; folders in use are left out."""
    found = []
    for place in sorted(path for path in root.glob("*") if path.is_dir() and path.name not in IN_USE):
        sizes = [size for path in (stale(place) if place.name == WORK else [place]) for size in _sizes(path)]
        if sizes:
            found.append(Kept(name=place.name, files=len(sizes), size=sum(sizes)))
    return found


def _sizes(path: Path) -> Iterator[int]:
    """Bytes of a file, or of each file in a folder; a file that disappears meanwhile is skipped."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        with contextlib.suppress(FileNotFoundError):
            if file.is_file():
                yield file.lstat().st_size


def clean(root: Path, names: tuple[str, ...]) -> None:
    """Remove folders of the cache; they are made again when they are needed.

    A process that has a file open keeps it; one that is building something keeps its temporary files.
    """
    for name in names:
        assert name not in IN_USE
        try:
            if name == WORK:
                remove_stale(root / name)
            else:
                shutil.rmtree(root / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{root / name} cannot be removed ({_reason(error)}). Remove it as its owner.") from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield a short enough name for a socket: the system takes about a hundred bytes."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, timeout_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a file; the system releases it when the holder ends, however it ends."""
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
    """Hold the lock of a folder without writing in it; otherwise like `locked`."""
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
                f"{holder()} has been doing the same for more than {timeout_seconds:g} s. End it, then try again.",
                path=path,
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
