"""The detection of hangs: a pure function of the workers' reports and the clock.

Workers that step together hang when none has reported progress for longer than its activity may take: a step several
times the usual, data a minute, compiling or saving `--stall-seconds`. User code between steps has only that bound. The
most patient worker counts. A process stopped by SIGSTOP always hangs. With parameter servers only the chief steps.

An agent that was itself stopped has missed reports, so its waits begin anew.
"""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tfdist.monitor.phases import Activity
from tfdist.monitor.status import StepState, WorkerStatus

STEPS = 5.0  # a step hangs after so many times the median
SAMPLES = 50  # steps of that median
FEWEST = 3  # steps, before there is one
FIRST = 5.0  # after a restart, until then, a step may take so many times as long as it could before
INPUT_SECONDS = 60.0
GAP_SECONDS = 1.0  # longest gap between looks of a running agent; at most half of a hang


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The time limits of activities. `hang_seconds` is the least for a step, and the most for a stopped process.

    `crowding` is the number of programs per processor, at least 1: a step may wait so many times as long for its turn.
    """

    hang_seconds: float = 2.0
    stall_seconds: float = 1800.0
    crowding: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    worker: int
    status: WorkerStatus
    stopped: bool = False
    name: str | None = None

    def __str__(self) -> str:
        return self.name or f"worker {self.worker}"


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A hang: no worker makes progress. The others wait for `worker`, if it is known; `since` is a clock time."""

    worker: int | None
    text: str
    since: float


@dataclass(frozen=True, kw_only=True)
class Hung:
    hang: Hang


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The agent's memory between looks."""

    looked: float  # clock time of the last look
    awake: float  # clock time of the first look without a gap
    steps: int = 0
    samples: tuple[float, ...] = ()  # seconds of the last steps, each of the slowest worker
    earlier: tuple[float, ...] = ()  # those of the start before
    stopped: Mapping[int, float] = field(default_factory=dict)  # clock time at which each was first seen stopped


def crowding() -> float:
    """Return the number of programs per processor here, by the load of the last minute; at least 1."""
    try:
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except OSError:
        return 1.0


def begin(now: float, earlier: tuple[float, ...] = ()) -> Watch:
    return Watch(looked=now, awake=now, earlier=earlier)


def look(
    watch: Watch,
    seen: Sequence[Seen],
    now: float,
    patience: Patience,
    *,
    stopped_tasks: Mapping[int, str] = MappingProxyType({}),
) -> tuple[Watch, Hang | None]:
    names = {one.worker: str(one) for one in seen if one.stopped} | dict(stopped_tasks)
    watch, hang = _look_for_stopped(watch, names, now, patience)
    watch = _sampled(watch, seen)
    if stopped_tasks:
        return replace(watch, awake=now), hang  # when it continues again, the chief has all its time
    return watch, hang or _stuck(watch, seen, now, patience)


def _look_for_stopped(
    watch: Watch, names: Mapping[int, str], now: float, patience: Patience
) -> tuple[Watch, Hang | None]:
    if now - watch.looked > min(GAP_SECONDS, patience.hang_seconds / 2):
        watch = replace(watch, awake=now, stopped={})
    stopped = {index: watch.stopped.get(index, now) for index in names}
    watch = replace(watch, looked=now, stopped=stopped)
    for index, since in stopped.items():
        if now - since > patience.hang_seconds:
            text = f"{names[index]} hangs: its process has been stopped (SIGSTOP) for {now - since:.1f} s"
            return watch, Hang(worker=index, text=text, since=since)
    return watch, None


def allowed_seconds(activity: Activity, samples: Sequence[float], patience: Patience) -> float:
    """Return the seconds for which a worker may report nothing new during an activity.

    Example:
        >>> patience = Patience()
        >>> [allowed_seconds(Activity.STEPPING, steps, patience) for steps in ([0.1] * 3, [1.0] * 3, [])]
        [2.0, 5.0, 1800.0]
        >>> allowed_seconds(Activity.STEPPING, [0.1] * 3, Patience(crowding=6.0))
        12.0
    """
    if activity is Activity.HELD:
        return 0.0
    if activity is Activity.ENDED:
        return math.inf  # after fit a script has no bound
    if activity not in (Activity.STEPPING, Activity.INPUT) or not samples:
        return patience.stall_seconds
    steps = max(patience.hang_seconds * patience.crowding, STEPS * statistics.median(samples))
    return steps if activity is Activity.STEPPING else max(INPUT_SECONDS, steps)


def _sampled(watch: Watch, seen: Sequence[Seen]) -> Watch:
    ended = min((one.status.ended for one in seen), default=0)
    if ended <= watch.steps:
        return watch
    slowest = max(one.status.step_seconds for one in seen)
    return replace(watch, steps=ended, samples=(*watch.samples, slowest)[-SAMPLES:])


def _stuck(watch: Watch, seen: Sequence[Seen], now: float, patience: Patience) -> Hang | None:
    if not any(one.status.pid for one in seen) or all(one.status.activity is Activity.HELD for one in seen):
        return None  # no worker has reported yet; or all wait for the agent
    since = max(watch.awake, *(one.status.changed for one in seen))
    samples = watch.samples
    if watch.steps < FEWEST:  # steps of the start before say how long one takes, once all is restored and compiled
        samples = tuple(FIRST * seconds for seconds in watch.earlier) if watch.steps else ()
        patience = replace(patience, hang_seconds=FIRST * patience.hang_seconds)
    if now - since <= max(allowed_seconds(one.status.activity, samples, patience) for one in seen):
        return None
    halted = [one for one in seen if one.stopped]
    culprit = halted[0] if len(halted) == 1 else _culprit(seen)
    seconds = f"for {now - since:.1f} s"
    if culprit is None:
        names = " and ".join(map(str, seen))
        does = _doing(seen[0].status)
        return Hang(worker=None, text=f"{names} hang{'s' if len(seen) == 1 else ''}: {does} {seconds}", since=since)
    return Hang(worker=culprit.worker, text=f"{culprit} hangs: {_doing(culprit.status)} {seconds}", since=since)


def _culprit(seen: Sequence[Seen]) -> Seen | None:
    """Return the only worker that is behind or not in a step; if others agree after it, the one still in the step."""
    if len(seen) == 1:
        return seen[0]
    fewest = min(one.status.position.started for one in seen)
    behind = [one for one in seen if one.status.position.started == fewest]
    if len(behind) == len(seen):
        behind = [one for one in seen if not _is_in_a_step(one) and not _agrees(one)]
        if not behind:
            behind = [one for one in seen if _is_in_a_step(one)]
    return behind[0] if len(behind) == 1 else None


def _is_in_a_step(one: Seen) -> bool:
    return one.status.position.state is StepState.RUNNING and one.status.activity is not Activity.BETWEEN


def _agrees(one: Seen) -> bool:
    return one.status.position.state is StepState.DONE and one.status.activity is Activity.STEPPING


def _doing(status: WorkerStatus) -> str:
    position, count = status.position, status.position.started + 1
    if position.state is StepState.RUNNING and status.activity is Activity.STEPPING:
        return f"in step {count} since it was started"
    if status.activity is not Activity.BETWEEN:
        return f"{status.activity.name.lower()} after {count} steps since it was started"
    where = f"before step {count}" if position.state is StepState.RUNNING else f"after {count} steps"
    return f"in the script's own code (a callback, or between two calls) {where} since it was started"
