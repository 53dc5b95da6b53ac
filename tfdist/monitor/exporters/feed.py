"""From looks at a job to updates: what is new since the last one, and steps put together into points of curves."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfdist.monitor.exporters.exporter import Point, Update
from tfdist.monitor.verdict.step_parts import OF_STEPS, Timeline
from tfdist.monitor.watch.observing import Observer
from tfdist.monitor.watch.snapshot import Snapshot

#: seconds that workers are waited for which have not recorded a step, while others have
PATIENCE_SECONDS = 10.0


def interval(elapsed: float) -> float:
    """Return how many seconds lie between two points: short at first, and so that a day's curve is no burden.

    Example:
        >>> interval(0.0), interval(120.0), interval(86_400.0)
        (0.5, 2.0, 10.0)
    """
    return min(10.0, max(0.5, elapsed / 60))


class Feed:
    """Makes updates of one job.

    Every step that a look has seen is in exactly one point.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        every: int = 1,
        after: int = -1,
        pace: Callable[[float], float] = interval,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._every = every
        self._pace = pace
        self._now = now
        self._begun = self._cut_at = now()
        self._recorded: float | None = None  # when a step was seen first in this start
        self._start, self._reached, self._seen = -1, after, 0
        self._pending: list[Timeline] = []
        self._last: Snapshot | None = None

    def look(self, *, is_last: bool = False) -> Update | None:
        """Return what is new; None where the job was never seen."""
        found = self._observer.look()
        if found is None:
            if self._last is None:
                return None
            return Update(snapshot=replace(self._last, is_running=False), points=self._cut(self._last), is_last=True)
        points: list[Point] = []
        if found.start != self._start:
            points += self._cut(self._last or found)  # the rest of the start before
            if self._last is not None and self._last.workers:
                self._reached = -1
            self._start, self._recorded = found.start, None
        points += self._take(found, is_last=is_last)
        fresh, self._seen = found.events[self._seen :], len(found.events)
        is_last = is_last or any(event.get("event") == "ended" for event in fresh)
        now = self._now()
        count = sum(len(one.steps) for one in self._pending)
        if is_last or (count >= self._every and now - self._cut_at >= self._pace(now - self._begun)):
            points += self._cut(found)
            self._cut_at = now
        self._last = found
        return Update(snapshot=found, points=tuple(points), events=fresh, is_last=is_last)

    def _take(self, found: Snapshot, *, is_last: bool) -> tuple[Point, ...]:
        """Take the steps that are new; return a point of those before where other workers have done them."""
        whole = self._observer.timeline
        if whole is None:
            return ()
        now = self._now()
        if self._recorded is None:
            self._recorded = now
        if len(whole.ranks) < len(found.workers) and now - self._recorded < PATIENCE_SECONDS and not is_last:
            return ()
        fresh = whole.only(whole.steps > self._reached)
        if not len(fresh.steps):
            return ()
        cut = self._cut(found) if self._pending and self._pending[0].ranks != fresh.ranks else ()
        self._pending.append(fresh)
        self._reached = int(fresh.steps[-1])
        return cut

    def _cut(self, found: Snapshot) -> tuple[Point, ...]:
        if not self._pending:
            return ()
        steps, self._pending = joined(self._pending), []
        before = max((one.resumed for one in found.workers), default=0)
        ended = time.time() - (time.monotonic() - float(steps.ends[-1].max()))
        return (Point(step=before + int(steps.steps[-1]), time=ended, steps=steps),)


def joined(pieces: Sequence[Timeline]) -> Timeline:
    """Return the steps of several timelines of the same workers, in this order."""
    whole: dict[str, Any] = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in OF_STEPS}
    is_divided, traced = all(piece.is_divided for piece in pieces), max(piece.traced for piece in pieces)
    return replace(pieces[0], traced=traced, is_divided=is_divided, **whole)
