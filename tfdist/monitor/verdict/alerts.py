"""The detection of a job's problems: pure functions of its last steps and of its memory use. Loads no TensorFlow.

Alerts are based on medians and runs of steps, never on one step: a missed alert is better than a false one.
"""

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
import psutil

from tfdist.errors import ConfigError
from tfdist.monitor.status import read_all
from tfdist.monitor.verdict.step_parts import Part, Timeline
from tfdist.monitor.verdict.stragglers import slow_workers

#: steps one after the other whose loss is not finite
NOT_FINITE_STEPS = 3
#: seconds for which a worker must be slow, or steps where they are short: another program that takes a processor for
#: a moment makes no worker slow
SLOW_SECONDS, SLOW_AT_LEAST = 2.0, 512
#: steps of which a loss is the median, and how often such medians rise one after the other: where another training
#: begins, with another loss, two may do so
LOSS_STEPS, RISES = 50, 3
#: measured norms of the gradient that are looked at, those before them, and by what factor they are larger then
NORMS, NORMS_BEFORE, EXPLODED = 3, 10, 10.0
#: steps of which half of the time is waiting for input, in the median
INPUT_STEPS, STARVED = 50, 0.5
#: looks at a process's memory, and seconds between the first and the last of them
LOOKS, GROWING_SECONDS = 32, 300.0
#: the least growth of memory for an alert: in bytes, and as a part of what it was
GROWN_BYTES, GROWN = 64 << 20, 0.1

# for normal numbers: the standard deviation over the median distance from the median
_ROBUST = 1.4826
#: seconds for which an alert must not have been raised before it is told again
AGAIN_SECONDS = 60.0


class Kind(StrEnum):
    """The subject of an alert, which is also a label of metrics."""

    LOSS_NOT_FINITE = "loss_not_finite"
    LOSS_DIVERGES = "loss_diverges"
    SLOW_WORKER = "slow_worker"
    INPUT_STARVATION = "input_starvation"
    GRADIENT_NOT_FINITE = "gradient_not_finite"
    GRADIENT_EXPLODES = "gradient_explodes"
    GRADIENT_VANISHES = "gradient_vanishes"
    MEMORY_GROWS = "memory_grows"


@dataclass(frozen=True)
class Alert:
    """An alert: a problem of a worker, or of all workers (None), and a sentence with the numbers."""

    kind: Kind
    worker: int | None
    text: str


def alerts(found: Timeline, after: int = -1) -> list[Alert]:
    if not len(found.steps):
        return []
    return [*not_finite(found), *diverges(found), *slow(found, after), *starved(found), *of_gradients(found)]


def not_finite(found: Timeline) -> list[Alert]:
    """Return alerts of workers whose loss was NaN or infinite in the last steps."""
    last = found.last(NOT_FINITE_STEPS)
    if len(last.steps) < NOT_FINITE_STEPS:
        return []
    bad = (last.has_loss & ~np.isfinite(last.loss)).all(axis=0)
    who = [None] if bad.all() else [rank for rank, is_bad in zip(found.ranks, bad, strict=True) if is_bad]
    value, step = last.loss[-1, int(bad.argmax())], int(last.steps[-1])
    bad_for = f"is {value}, for {NOT_FINITE_STEPS} steps up to {step}"
    return [
        Alert(Kind.LOSS_NOT_FINITE, rank, f"the loss{'' if rank is None else f' of worker {rank}'} {bad_for}")
        for rank in who
    ]


def diverges(found: Timeline) -> list[Alert]:
    """Return an alert if the loss has kept rising, and has doubled."""
    mean = found.loss.mean(axis=1)
    mean = mean[np.isfinite(mean)]
    pieces = [mean[len(mean) - LOSS_STEPS * back :][:LOSS_STEPS] for back in range(RISES + 1, 0, -1)]
    if len(mean) < LOSS_STEPS * len(pieces):
        return []
    medians = [float(np.median(piece)) for piece in pieces]
    changes = np.diff(pieces[0])  # of a step from the one before: what follows does not count
    spread = 3 * float(_ROBUST * np.median(np.abs(changes - np.median(changes)))) / 2**0.5
    rises = all(later - sooner > spread for sooner, later in itertools.pairwise(medians))
    if not rises or medians[-1] - medians[0] < abs(medians[0]):
        return []
    count = LOSS_STEPS * len(pieces)
    text = f"the loss rose from {medians[0]:.4g} to {medians[-1]:.4g} in {count} steps"
    return [Alert(Kind.LOSS_DIVERGES, None, text)]


def slow(found: Timeline, after: int = -1) -> list[Alert]:
    """Return alerts of workers for which the others have waited in many successive steps, and for some seconds."""
    return [
        Alert(Kind.SLOW_WORKER, one.worker, one.text)
        for one in slow_workers(found)
        if one.last > after and (one.ended - one.began >= SLOW_SECONDS or one.steps >= SLOW_AT_LEAST)
    ]


def starved(found: Timeline) -> list[Alert]:
    last = found.last(INPUT_STEPS)
    if len(last.steps) < INPUT_STEPS:
        return []
    share = float(np.median(last.of(Part.INPUT) / np.maximum(last.step, 1e-9)))
    if share < STARVED:
        return []
    return [Alert(Kind.INPUT_STARVATION, None, f"steps wait for input for {share:.0%} of their time")]


def of_gradients(found: Timeline) -> list[Alert]:
    """Return alerts of gradient norms since the last trace that are not finite, 0, or many times what they were."""
    since = found.only(found.steps > found.traced)
    told = [_of_gradient(norms[~np.isnan(norms)]) for norms in since.gradient_norm.T]
    if told and told[0] is not None and all(one is not None and one[0] == told[0][0] for one in told):
        told = told[:1]
        return [Alert(kind, None, f"the norm of the gradient {text}") for kind, text in filter(None, told)]
    return [
        Alert(one[0], rank, f"the norm of the gradient of worker {rank} {one[1]}")
        for rank, one in zip(found.ranks, told, strict=True)
        if one is not None
    ]


def _of_gradient(norms: np.ndarray) -> tuple[Kind, str] | None:
    before, last = norms[: -NORMS or None][-NORMS_BEFORE:], norms[-NORMS:]
    if len(last) < NORMS:
        return None
    if np.isinf(last).all():
        return Kind.GRADIENT_NOT_FINITE, f"is not finite, {NORMS} times one after the other"
    if not last.any() and before.any():
        return Kind.GRADIENT_VANISHES, f"is 0, {NORMS} times one after the other; it was {np.median(before):.4g}"
    most = before.max(initial=0.0)
    if len(before) == NORMS_BEFORE and 0 < EXPLODED * most < last.min():
        return Kind.GRADIENT_EXPLODES, f"is {np.median(last):.4g}; it was {most:.4g} at most"
    return None


def grows(worker: int, memory: Iterable[tuple[float, int]]) -> list[Alert]:
    looks = list(memory)
    if len(looks) < LOOKS or looks[-1][0] - looks[0][0] < GROWING_SECONDS:
        return []
    medians = [float(np.median(part)) for part in np.array_split([size for _, size in looks], 4)]
    rises = all(later > sooner for sooner, later in itertools.pairwise(medians))
    if not rises or medians[-1] - medians[0] < max(GROWN_BYTES, GROWN * medians[0]):
        return []
    (began, first), (ended, last) = looks[0], looks[-1]
    sizes = f"{first / 1e6:.0f} MB, and {last / 1e6:.0f} MB {ended - began:.0f} s later"
    return [Alert(Kind.MEMORY_GROWS, worker, f"worker {worker} takes more and more memory: {sizes}")]


def sizes(table: Path) -> dict[int, int]:
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
    """Samples of a process's memory over its whole time, few enough to keep."""

    every: float = 1.0
    kept: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, size: int) -> None:
        """Keep a sample if it is time for one; when there are many, every second one is dropped."""
        if self.kept and now - self.kept[-1][0] < self.every:
            return
        self.kept.append((now, size))
        if len(self.kept) >= 4 * LOOKS:
            self.kept, self.every = self.kept[::2], 2 * self.every


class Alarm:
    """A detector that looks at a job repeatedly, and returns new problems."""

    def __init__(self) -> None:
        self._raised: dict[tuple[Kind, int | None], float] = {}
        self._memory: dict[int, Looks] = {}
        self._after = -1

    def begins(self) -> None:
        """Take in a new start of the workers, with other processes and new numbers of steps."""
        self._memory.clear()
        self._after = -1

    def look(self, found: Timeline | None, memory: Mapping[int, int], now: float) -> list[Alert]:
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
