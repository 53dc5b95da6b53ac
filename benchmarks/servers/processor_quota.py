"""A process that the kernel limits to a part of a processor: a quota of cgroups, version 1."""

import contextlib
import os
import time
from pathlib import Path

from benchmarks.servers.throttle import Throttle

__all__ = ["PERIOD_MICROSECONDS", "Quota", "has_quotas", "slowed"]

#: in each period, a process runs for its part of it
PERIOD_MICROSECONDS = 8000
_CONTROLLER = Path("/sys/fs/cgroup/cpu")
_REMOVE_SECONDS = 5.0


def has_quotas(controller: Path = _CONTROLLER) -> bool:
    """Return whether this process may make groups with quotas: version 1 of cgroups, and root."""
    return (controller / "cpu.cfs_quota_us").exists() and os.access(controller, os.W_OK)


class Quota:
    """A context in which a process has 1 / ``factor`` of one processor; afterwards it has what it had before.

    Turns are of 8 ms, shorter than those of `Throttle`, so each step of a training is slower by the same factor.

    Args:
        pid: the process.
        factor: how many times slower it becomes, at least 1.

    Example:
        >>> with Quota(pid, 4.0):                                  # doctest: +SKIP
        ...     measure()
    """

    def __init__(self, pid: int, factor: float) -> None:
        self._pid = pid
        self._factor = factor
        self._group = _CONTROLLER / f"tfdist-benchmark-{os.getpid()}-{pid}"

    def __enter__(self) -> "Quota":
        self._group.mkdir()
        (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (self._group / "cpu.cfs_quota_us").write_text(str(round(PERIOD_MICROSECONDS / self._factor)))
        (self._group / "cgroup.procs").write_text(str(self._pid))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            (_CONTROLLER / "cgroup.procs").write_text(str(self._pid))
        deadline = time.monotonic() + _REMOVE_SECONDS
        while True:  # a thread that ends leaves its group a moment later
            try:
                self._group.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def slowed(pid: int, factor: float) -> Quota | Throttle:
    """Return a context in which a process is slower: by a quota where there are such, otherwise by stops."""
    return Quota(pid, factor) if has_quotas() else Throttle(pid, factor)
