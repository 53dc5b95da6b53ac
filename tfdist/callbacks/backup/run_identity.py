"""The identity of a backup's training, in case several calls of `fit`, or several jobs, share one directory.

This process counts the trainings that have ended and removed their backup. A restarted script counts from zero, so its
first `fit` would otherwise take what a later one has saved. A lock on the directory reveals another job at the same
time; the system releases the lock however a process ends.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tfdist.errors import ConfigError

_over: Counter[str] = Counter()
_claims: "dict[str, Claim]" = {}  # of this process, by the place


class Claim:
    """A claim that tells other processes, until `close`, that a training of this process uses a backup directory.

    `is_alone`: whether no other process uses it. In an object store this cannot be found out, so it is True.
    """

    def __init__(self, backup_dir: str) -> None:
        self.is_alone = True
        self._folder = backup_dir
        self._descriptor: int | None = None
        self._place = place_of(backup_dir)
        if (before := _claims.get(self._place)) is not None:
            before.close()  # of a fit that was interrupted
        if "://" in backup_dir:
            return
        with contextlib.suppress(OSError):  # no locks here
            os.makedirs(backup_dir, exist_ok=True)
            self._descriptor = os.open(backup_dir, os.O_RDONLY | os.O_DIRECTORY)
            _keep_from_children()
            _claims[self._place] = self
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.is_alone = False

    def close(self) -> None:
        """Release the directory, and remove it if it is empty; a second call does nothing."""
        if self._descriptor is None:
            return
        self.let_go()
        del _claims[self._place]
        with contextlib.suppress(OSError):  # something is in it
            os.rmdir(self._folder)

    def let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@functools.cache
def _keep_from_children() -> None:
    """Keep forked processes from holding a lock, which would outlive this one."""

    def let_go() -> None:
        for one in _claims.values():
            one.let_go()

    os.register_at_fork(after_in_child=let_go)


def place_of(backup_dir: str) -> str:
    """Return an identifier of a backup directory, the same from any working directory."""
    place = backup_dir if "://" in backup_dir else os.path.abspath(backup_dir)
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def mark(backup_dir: str) -> dict[str, Any]:
    """Identify the current training, as JSON; saved states with the same mark belong to the same training."""
    place = place_of(backup_dir)
    return {"place": place, "before": _over[place]}


def is_over(backup_dir: str) -> None:
    """Note that a training has ended, and that its backup is removed."""
    _over[place_of(backup_dir)] += 1


def require_same(backup_dir: str, found: Mapping[str, Any] | None) -> None:
    """Raise if a saved state belongs to another training than the one that begins now."""
    own = mark(backup_dir)
    if found is None or found["place"] != own["place"] or found["before"] == own["before"]:
        return
    raise ConfigError(
        f"the backup in {backup_dir} is of fit number {found['before'] + 1} of its script with this backup_dir, and "
        f"this is number {own['before'] + 1}. Each call of fit needs a backup_dir of its own: move this backup to "
        "another directory, pass that one to the BackupAndRestore of its fit, and start again. Earlier fits of a "
        "script should have delete_checkpoint=False, or they train anew when the script is started again.",
        name="backup_dir",
        received=backup_dir,
    )
