"""Decide when an alert is raised: once, and again only after it was over for a while."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tfdist.errors import ConfigError
from tfdist.monitor.status import read_all
from tfdist.monitor.verdict.alerts import LOOKS, Alert, Kind, alerts, grows
from tfdist.monitor.verdict.step_parts import Timeline

#: seconds for which an alert must not have been raised before it is told again
AGAIN_SECONDS = 60.0


def sizes(table: Path) -> dict[int, int]:
    """Return the resident bytes of each worker's process."""
    found: dict[int, int] = {}
    try:
        said = read_all(table)
    except (OSError, ConfigError):  # it ends meanwhile
        return found
    for worker, one in enumerate(said):
        if one.pid:
            with contextlib.suppress(psutil.Error):
                found[worker] = int(psutil.Process(one.pid).memory_info().rss)
    return found


@dataclass
class Looks:
    """Looks at a process's memory: few enough to keep, over all of its time."""

    every: float = 1.0
    kept: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, size: int) -> None:
        """Keep a look if it is time for one; when there are many, every second one is forgotten."""
        if self.kept and now - self.kept[-1][0] < self.every:
            return
        self.kept.append((now, size))
        if len(self.kept) >= 4 * LOOKS:
            self.kept, self.every = self.kept[::2], 2 * self.every


class Alarm:
    """Looks at a job again and again, and says what has become wrong with it since."""

    def __init__(self) -> None:
        self._raised: dict[tuple[Kind, int | None], float] = {}
        self._memory: dict[int, Looks] = {}
        self._after = -1

    def begins(self) -> None:
        """Learn that the workers are started anew: other processes, and steps that count from the first one."""
        self._memory.clear()
        self._after = -1

    def look(self, found: Timeline | None, memory: Mapping[int, int], now: float) -> list[Alert]:
        """Return the alerts that are to be told now."""
        raised = [] if found is None else alerts(found, self._after)
        if found is not None and len(found.steps):
            self._after = int(found.steps[-1])
        for worker, size in memory.items():
            looks = self._memory.setdefault(worker, Looks())
            looks.add(now, size)
            raised += grows(worker, looks.kept)
        fresh = []
        for alert in raised:
            before = self._raised.get((alert.kind, alert.worker))
            if before is None or now - before > AGAIN_SECONDS:
                fresh.append(alert)
            self._raised[alert.kind, alert.worker] = now
        return fresh
