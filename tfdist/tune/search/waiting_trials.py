"""Paused trials whose processes wait: the orders that let them continue or end, and which of them are kept.

Orders go through a named pipe, which the search holds open and makes anew for each process. So what an earlier process
has said cannot be mistaken for the present one. If the search dies, the kernel ends the processes (Linux), and their
trials resume from their backups.
"""

import bisect
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from tfdist.doctor import cgroup
from tfdist.tune.search.search_history import WORST, History

_MEMINFO = Path("/proc/meminfo")
_LEFT_FREE = 0.25  # of the memory: trials that run may need it, and a process that waits can be started again


class Orders:
    """The search's end of the pipe of one process, on a disk of this machine."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        self.path = str(path)
        self._end = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # to read too, so that no side waits here

    def say(self, until: int) -> None:
        """Let the process train up to so many epochs, or end (0)."""
        os.write(self._end, b"%d\n" % until)

    def close(self) -> None:
        os.close(self._end)
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def least_promising(waiting: Iterable[int], history: History) -> int:
    """Return the waiting trial that is the furthest behind in its rung, which is the last to be promoted.

    Example:
        >>> from tfdist.tune.search.search_history import End, Report, Start
        >>> history = History(slots=2)
        >>> for number, loss in enumerate((0.5, 0.9, 0.1)):
        ...     for event in (Start(number, {}, 1), Report(number, 1, loss), End(number, "paused")):
        ...         history.add(event)
        >>> least_promising([0, 1, 2], history)
        1
    """

    def place(number: int) -> tuple[float, int]:
        trial = history.trials[number]
        result, rung = trial.results.get(trial.until, WORST), history.rungs.get(trial.until, [])
        behind = bisect.bisect_left(rung, (result, number)) / max(1, len(rung))
        return (behind if result < WORST else WORST), number

    return max(waiting, key=place)


def has_room(meminfo: Path = _MEMINFO, limits: cgroup.Limits | None = None) -> bool:
    """Return whether a quarter of the memory is free, of this machine and of the container; True if nobody knows."""
    found: list[tuple[float, float]] = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = [line.split() for line in meminfo.read_text(encoding="utf-8").splitlines()]
        known = {words[0]: float(words[1]) for words in lines if len(words) > 1}
        found.append((known["MemAvailable:"], known["MemTotal:"]))
    limits = limits or cgroup.observe()
    if limits.memory_bytes and limits.memory_used_bytes is not None:
        found.append((limits.memory_bytes - limits.memory_used_bytes, limits.memory_bytes))
    return all(free >= _LEFT_FREE * total for free, total in found)
