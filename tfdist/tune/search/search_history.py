"""The state of a search, as a fold over its events; decisions are events too.

A report is a value after a number of epochs (`step`). A lower score is better; NaN and infinity are the worst. The
first report of a trial at a step counts. A trial's result at a rung is its last report when its process ends there.

Example:
    >>> history = History(slots=2, mode="max")
    >>> for event in (Start(0, {"lr": 0.1}, 3), Report(0, 3, 0.9), End(0, "paused")):
    ...     history.add(event)
    >>> history.trials[0].status.value, history.free, history.rungs[3]
    ('paused', 2, [(-0.9, 0)])
"""

import bisect
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from tfdist.tune.search.search_space import Parameter, Values, from_json, to_json

WORST = math.inf


@dataclass(frozen=True)
class Start:
    """The start of a trial, which trains up to `until` epochs. `values` is None if the script declares the space."""

    trial: int
    values: Values | None
    until: int


@dataclass(frozen=True)
class Resume:
    """The resumption of a paused or dead trial from its backup."""

    trial: int
    until: int


@dataclass(frozen=True)
class Stop:
    """The final end of a running trial."""

    trial: int


@dataclass(frozen=True)
class Clone:
    """The replacement of a paused trial's backup and values by the backup of another trial and new values."""

    trial: int
    donor: int
    values: Values


@dataclass(frozen=True)
class Declare:
    """The declaration of a parameter by the script of a trial."""

    trial: int
    name: str
    parameter: Parameter
    value: Any


@dataclass(frozen=True)
class Report:
    """A report: the value of the metric after a number of epochs."""

    trial: int
    step: int
    value: float


@dataclass(frozen=True)
class End:
    """The end of a trial's process: at its rung, at the end of training, by request, or by a failure."""

    trial: int
    how: Literal["paused", "finished", "stopped", "died"]
    cause: str = ""


Decision = Start | Resume | Stop | Clone
Event = Decision | Declare | Report | End
_EVENTS: dict[str, Any] = {one.__name__.lower(): one for one in (Start, Resume, Stop, Clone, Declare, Report, End)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON for the journal."""
    fields = asdict(event)
    if isinstance(event, Declare):
        fields["parameter"] = to_json(event.parameter)
    return {"event": type(event).__name__.lower(), **fields}


def event_from_json(content: Mapping[str, Any]) -> Event:
    fields = dict(content)
    kind = _EVENTS[fields.pop("event")]
    if kind is Declare:
        fields["parameter"] = from_json(fields["parameter"])
    found: Event = kind(**fields)
    return found


class Status(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"  # it will be started again
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"  # it has died too often


@dataclass
class Trial:
    """The state of one trial; `results` are its scores at the rungs where its process ended."""

    number: int
    values: Values
    until: int
    status: Status = Status.RUNNING
    declared: dict[str, Parameter] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    results: dict[int, float] = field(default_factory=dict)
    deaths: int = 0
    cause: str = ""
    is_stopping: bool = False
    lineage: list[tuple[int, int]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The number of epochs that the trial has finished."""
        return max(self.scores, default=0)

    @property
    def best(self) -> float:
        return min(self.scores.values(), default=WORST)

    @property
    def best_step(self) -> int:
        """The number of epochs after which the score was best; the first of equal scores."""
        return min(self.scores, key=lambda step: (self.scores[step], step), default=0)

    @property
    def cloned_at(self) -> int:
        return self.lineage[-1][0] if self.lineage else 0


class History:
    """All trials of a search. `restarts` is the number of times that a trial may die between two reports."""

    def __init__(self, *, slots: int, mode: Literal["min", "max"] = "min", restarts: int = 1) -> None:
        self.slots = slots
        self.trials: dict[int, Trial] = {}
        self.rungs: dict[int, list[tuple[float, int]]] = {}  # results, best first
        self.means: dict[int, list[tuple[float, int]]] = {}  # of a trial's scores up to an epoch, best first
        self.failures = 0  # trials that have failed since the last report
        self._sign = -1.0 if mode == "max" else 1.0
        self._restarts = restarts
        self._running: set[int] = set()
        self._dead: set[int] = set()
        self._waiting: dict[int, list[tuple[float, int]]] = {}  # of `rungs`, those that are paused there

    @property
    def running(self) -> list[int]:
        return sorted(self._running)

    @property
    def dead(self) -> list[int]:
        """The trials to start again."""
        return sorted(self._dead)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self._running))

    def promotable(self, rung: int, best: int) -> Iterator[int]:
        """Yield the paused trials at a rung that are among its best ones, the best first."""
        results = self.rungs.get(rung, [])
        for one in self._waiting.get(rung, []):
            if one[0] == WORST or bisect.bisect_left(results, one) >= best:
                return
            yield one[1]

    def with_status(self, *wanted: Status) -> list[Trial]:
        return [one for one in self.trials.values() if one.status in wanted]

    @property
    def is_hopeless(self) -> bool:
        """Whether three trials have failed before any has reported, or ten in a row since the last report."""
        return self.failures >= (10 if self.means else 3)

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; ties go to the first."""
        scored = [one for one in self.trials.values() if one.best < WORST]
        return min(scored, key=lambda one: (one.best, one.number), default=None)

    def value(self, score: float) -> float:
        """Return the value of the metric for a score."""
        return math.nan if score == WORST else self._sign * score

    def add(self, event: Event) -> None:
        if isinstance(event, Start):
            self.trials[event.trial] = Trial(number=event.trial, values=dict(event.values or {}), until=event.until)
            self._running.add(event.trial)
            return
        trial = self.trials[event.trial]
        match event:
            case Resume():
                if trial.status is Status.PAUSED:
                    self._waiting[trial.until].remove((trial.results[trial.until], trial.number))
                trial.until, trial.status = event.until, Status.RUNNING
                self._running.add(trial.number)
                self._dead.discard(trial.number)
            case Stop():
                trial.is_stopping = True
            case Clone():
                trial.values = dict(event.values)
                trial.lineage.append((trial.until, event.donor))
            case Declare():
                trial.declared[event.name] = event.parameter
                trial.values = {**trial.values, event.name: event.value}
            case Report():
                self.failures = 0
                if event.step not in trial.scores:
                    trial.scores[event.step] = self._sign * event.value if math.isfinite(event.value) else WORST
                    trial.deaths = 0
                    mean = sum(trial.scores.values()) / len(trial.scores)
                    bisect.insort(self.means.setdefault(event.step, []), (mean, trial.number))
            case End():
                self._end(trial, event)

    def _end(self, trial: Trial, event: End) -> None:
        self._running.discard(trial.number)
        if event.how == "died":
            trial.deaths += 1
            trial.cause = event.cause
            trial.status = Status.DEAD if trial.deaths <= self._restarts else Status.FAILED
            if trial.status is Status.DEAD:
                self._dead.add(trial.number)
            else:
                self.failures += 1
            return
        trial.status = Status(event.how)
        if event.how == "stopped":
            return
        result = trial.scores.get(trial.step, WORST)
        trial.results[trial.until] = result
        bisect.insort(self.rungs.setdefault(trial.until, []), (result, trial.number))
        if trial.status is Status.PAUSED:
            bisect.insort(self._waiting.setdefault(trial.until, []), (result, trial.number))
