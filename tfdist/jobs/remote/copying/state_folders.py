"""The states of trainings in a directory in memory, as `tfdist.checkpoint` leaves them there.

Each training has a folder of its own, and in it one for each state, which has its name once it is whole, and is not
changed any more. A hidden name is of one that is being made. Of two states the later has the greater name.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# The file of a state that is written last and removed first: as long as it is there, all others are.
LAST = "manifest.json"
_STATE = "state"


def place(root: Path, training: str) -> Path:
    """Return where the states of a training are.

    Example:
        >>> str(place(Path("/memory"), "1f"))
        '/memory/1f/state'
    """
    return root / training / _STATE


def states(root: Path, training: str) -> list[str]:
    """Return the names of the states of a training, the newest last."""
    try:
        return sorted(name for name in os.listdir(place(root, training)) if not name.startswith("."))
    except OSError:
        return []


def newest(root: Path) -> dict[str, tuple[str, int]]:
    """Return, by training, the name of the newest state, and what tells it from another that has had the same name."""
    found = {}
    try:
        trainings = os.listdir(root)
    except OSError:
        return {}
    for training in trainings:
        if names := states(root, training):
            try:
                found[training] = (names[-1], os.stat(place(root, training) / names[-1]).st_ino)
            except OSError:  # a newer one has taken its place
                continue
    return found


@contextmanager
def opened(folder: Path) -> Iterator[list[tuple[str, int, int]]]:
    """Yield name, descriptor and size of each file of a state; they can be read although it is removed meanwhile."""
    with ExitStack() as stack:

        def descriptor(name: str, flags: int, within: int | None = None) -> int:
            found = os.open(name, flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
            stack.callback(os.close, found)
            return found

        within = descriptor(str(folder), os.O_DIRECTORY)
        names = sorted(os.listdir(within))
        last = descriptor(LAST, 0, within)  # it is there, so nothing had been removed when they were listed
        files = [(name, last if name == LAST else descriptor(name, 0, within)) for name in names]
        yield [(name, file, os.fstat(file).st_size) for name, file in files]


def remove(root: Path, training: str, *, but: str | None = None) -> None:
    """Remove the states of a training."""
    for name in states(root, training):
        if name != but:
            discard(place(root, training) / name)


def discard(folder: Path) -> None:
    """Remove a state, or what was to become one, in the order in which no reader takes it for a damaged one."""
    with suppress(OSError):
        (folder / LAST).unlink()
    shutil.rmtree(folder, ignore_errors=True)
