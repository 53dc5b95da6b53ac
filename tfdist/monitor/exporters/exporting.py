"""The loop of `tfdist export`, which passes a job to its exporters, from its beginning or from now on, to its end."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

import numpy as np

from tfdist.monitor.exporters.exporter import Exporter, Point, Target, Update, make
from tfdist.monitor.verdict.step_parts import OF_STEPS, Timeline
from tfdist.monitor.watch.observing import Observer
from tfdist.monitor.watch.snapshot import Snapshot
from tfdist.waiting import Flag

LOOK_SECONDS = 1.0
#: the time that exporters have at the end
END_SECONDS = 15.0
#: the share of the time that looks may take
_SHARE = 1 / 30
#: updates that wait for a slow or a dead server; then the oldest ones are left out
MOST = 64
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0
#: seconds that workers are waited for which have not recorded a step, while others have
PATIENCE_SECONDS = 10.0
_News = TypeVar("_News")


def interval(elapsed: float) -> float:
    """Return the seconds between two points of a curve: few at first, more after a long time."""
    return min(10.0, max(0.5, elapsed / 60))


@dataclass(eq=False, repr=False)
class Feed:
    """The source of a job's updates; each step that a look has seen is in exactly one point."""

    observer: Observer
    every: int = 1
    after: int = -1
    pace: Callable[[float], float] = interval
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._begun = self._cut_at = self.now()
        self._recorded: float | None = None  # when a step was seen first in this start
        self._start, self._reached, self._seen = -1, self.after, 0
        self._pending: list[Timeline] = []
        self._last: Snapshot | None = None

    def look(self, *, is_last: bool = False) -> Update | None:
        """Return the news; None if the job was never seen."""
        found = self.observer.look()
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
        now = self.now()
        count = sum(len(one.steps) for one in self._pending)
        if is_last or (count >= self.every and now - self._cut_at >= self.pace(now - self._begun)):
            points += self._cut(found)
            self._cut_at = now
        self._last = found
        return Update(snapshot=found, points=tuple(points), events=fresh, is_last=is_last)

    def _take(self, found: Snapshot, *, is_last: bool) -> tuple[Point, ...]:
        """Take the new steps, and return points of earlier ones that other workers have finished."""
        whole = self.observer.timeline
        if whole is None:
            return ()
        now = self.now()
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
    whole: dict[str, Any] = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in OF_STEPS}
    is_divided, traced = all(piece.is_divided for piece in pieces), max(piece.traced for piece in pieces)
    return replace(pieces[0], traced=traced, is_divided=is_divided, **whole)


@dataclass(eq=False, repr=False)
class Outlet(Generic[_News]):
    """A thread that passes updates to an exporter, which it also makes.

    A failure is reported once, and its updates are tried again later, at most ``most`` of them.
    """

    name: str
    make: Callable[[], Exporter[_News]]
    warn: Callable[[str], None]
    first_wait: float = FIRST_WAIT_SECONDS
    most: int = MOST

    def __post_init__(self) -> None:
        self._waiting: deque[_News] = deque()
        self._changed = Condition()
        self._ends = False
        self._warned: set[str] = set()
        self._thread = Thread(target=self._run, name=f"export to {self.name}", daemon=True)
        self._thread.start()

    def put(self, update: _News) -> None:
        """Queue an update, without waiting."""
        with self._changed:
            if len(self._waiting) == self.most:
                self._waiting.popleft()
                self._once("slow", "does not keep up; some points are left out")
            self._waiting.append(update)
            self._changed.notify()

    def end(self, deadline: float) -> bool:
        """Write the queued updates, and close; return whether this was done in time."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        exporter: Exporter[_News] | None = None
        wait = self.first_wait
        while (update := self._next()) is not None:
            try:
                if exporter is None:
                    exporter = self.make()
                exporter.write(update)
                wait = self.first_wait
            except Exception as error:  # noqa: BLE001 - any, of any library and server
                self._once("failed", f"cannot be written ({_in_short(error)}); the job continues without it")
                with self._changed:
                    if not self._ends:
                        if len(self._waiting) < self.most:
                            self._waiting.appendleft(update)
                        self._changed.wait_for(lambda: self._ends, wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        if exporter is not None:
            try:
                exporter.close()
            except Exception as error:  # noqa: BLE001 - as above
                self._once("failed", f"cannot be closed ({_in_short(error)})")

    def _next(self) -> _News | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._ends)
            return self._waiting.popleft() if self._waiting else None

    def _once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self.warn(f"warning: export to {self.name}: {text}")


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


def export(
    feed: Feed,
    targets: Sequence[Target],
    *,
    warn: Callable[[str], None],
    enough: Flag,
    look_seconds: float = LOOK_SECONDS,
) -> bool:
    """Look at the job repeatedly, and pass on the news, until the job ends or ``enough`` is set."""
    outlets = [Outlet[Update](str(target), partial(make, target), warn) for target in targets]
    is_last = False
    while not is_last:
        begun = time.monotonic()
        update = feed.look(is_last=enough.is_set())
        if update is None:
            break
        for outlet in outlets:
            outlet.put(update)
        is_last = update.is_last
        if not is_last:
            enough.wait(max(look_seconds, (time.monotonic() - begun) / _SHARE))
    return end_all(outlets)


def end_all(outlets: Sequence[Outlet[Any]]) -> bool:
    """End outlets within `END_SECONDS`, with a warning for each that does not."""
    deadline = time.monotonic() + END_SECONDS
    ended = [outlet.end(deadline) for outlet in outlets]
    for outlet, is_through in zip(outlets, ended, strict=True):
        if not is_through:
            outlet.warn(
                f"warning: export to {outlet.name}: did not end within {END_SECONDS:.0f} s; its last points are missing"
            )
    return all(ended)
