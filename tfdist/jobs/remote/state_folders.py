"""The states of trainings in a folder in memory, as `tfdist.checkpoint` writes them.

Each training has a folder with one folder per state, which gets its name once it is complete and immutable. Hidden
names are incomplete. Later states have greater names.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# Written last and removed first: while it exists, all other files of the state do.
LAST = "manifest.json"
_STATE = "state"


def place(root: Path, training: str) -> Path:
    """The folder with the states of a training."""
    return root / training / _STATE


def states(root: Path, training: str) -> list[str]:
    """The states of a training, the newest last."""
    try:
        return sorted(name for name in os.listdir(place(root, training)) if not name.startswith("."))
    except OSError:
        return []


def newest(root: Path) -> dict[str, tuple[str, int]]:
    """The newest state of each training, with an inode that identifies it."""
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
    """Yield name, descriptor and size of each file of a state, readable even if it is removed meanwhile."""
    with ExitStack() as stack:

        def descriptor(name: str, flags: int, within: int | None = None) -> int:
            found = os.open(name, flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
            stack.callback(os.close, found)
            return found

        within = descriptor(str(folder), os.O_DIRECTORY)
        names = sorted(os.listdir(within))
        last = descriptor(LAST, 0, within)  # while it exists nothing has been removed
        files = [(name, last if name == LAST else descriptor(name, 0, within)) for name in names]
        yield [(name, file, os.fstat(file).st_size) for name, file in files]


def remove(root: Path, training: str, *, but: str | None = None) -> None:
    """Remove the states of a training except one."""
    for name in states(root, training):
        if name != but:
            discard(place(root, training) / name)


def discard(folder: Path) -> None:
    """Remove a state in the order in which no reader takes it for a damaged one."""
    with suppress(OSError):
        (folder / LAST).unlink()
    shutil.rmtree(folder, ignore_errors=True)
