"""The `Exporter` protocol: receives updates of a job, each with what is new since the previous one.

An exporter runs in a thread of its own, outside of the job: it may block and raise without any effect on workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tfdist.monitor.verdict.step_parts import Timeline
from tfdist.monitor.watch.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Point:
    """Steps of training that are one point of a curve.

    Attributes:
        step: the last one's number, over restarts as far as a backup says.
        time: of its end, seconds since 1970.
        steps: their parts, losses and hidden communication, on all workers.
    """

    step: int
    time: float
    steps: Timeline


@dataclass(frozen=True, kw_only=True)
class Update:
    """News of a job: its current snapshot, and the points and events since the last update."""

    snapshot: Snapshot
    points: tuple[Point, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    is_last: bool = False

    @property
    def alerts(self) -> tuple[Mapping[str, Any], ...]:
        """The alerts among the events: ``{"event": "alert", "alert": name, "worker": number or None, "text": ...}``."""
        return tuple(event for event in self.events if event.get("event") == "alert")


class Exporter(Protocol):
    """Hands updates of one job on."""

    def write(self, update: Update) -> None:
        """Hand an update on; the first one comes when the job is seen, the last one says that it is.

        Raises:
            Exception: any; it is told once, and later updates are tried all the same.
        """

    def close(self) -> None:
        """Give back what it holds, such as files and ports."""
