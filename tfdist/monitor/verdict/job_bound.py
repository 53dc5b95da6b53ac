"""Find what a job is bound by: a pure function of the parts of its steps.

All workers' steps and reductions are equally long, because they wait for each other. The worker that comes last shows:
the others wait for it. A cause is named only if it explains four fifths of that waiting. Numbers are means over the
shorter half of the steps: pauses do not count, and, unlike medians, parts still add up.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tfdist.monitor.verdict.step_parts import Part, Timeline, what_is_longer

#: steps that a verdict needs, and the last ones that it looks at
FEWEST, MOST = 20, 1000
#: of the steps, the part that is looked at: the shorter ones
CALM = 0.5
#: of the waiting, the part that a cause has to explain
EXPLAINED = 0.8
#: of a step, the part that waiting for one worker takes before it is named
LEAST_WAIT = 0.05
#: of the steps, the part in which a worker comes last before it is named
LEAST_OFTEN = 0.6
#: of a step, the part that something other than computation takes before the job is bound by it
LEAST_PART = 0.15


class Bound(StrEnum):
    """What a job is bound by."""

    UNKNOWN = "too few steps"
    STRAGGLER = "one slow worker"
    UNEVEN = "workers that wait for each other in turn"
    INPUT = "input"
    COMPUTING = "computing"
    COMMUNICATION = "communication"
    UPDATE = "updates"
    CHECKPOINT = "checkpoints"
    PYTHON = "Python between steps"


_QUARTERS = 4

_BOUND_BY = {
    Part.INPUT: Bound.INPUT,
    Part.COMMUNICATION: Bound.COMMUNICATION,
    Part.UPDATE: Bound.UPDATE,
    Part.CHECKPOINT: Bound.CHECKPOINT,
    Part.PYTHON: Bound.PYTHON,
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a job is bound by.

    Attributes:
        rank: the slow worker, or None.
        part: what takes its time there; None where nothing explains enough.
        step_seconds: the mean of a calm step.
        won_seconds: how much shorter a step would be without it; 0 if unknown.
        explained: the part of the waiting that the cause explains.
        often: the part of the steps in which this worker came last.
        steps: on which this is based.
        means: seconds of each part on each worker, shape (workers, parts).
        hidden: of communication during the backward pass, shape (workers,).
        is_divided: the graph had stamps.
        has_servers: workers exchange with servers, not with each other.
    """

    bound: Bound
    rank: int | None = None
    part: Part | None = None
    step_seconds: float = 0.0
    won_seconds: float = 0.0
    explained: float = 0.0
    often: float = 0.0
    steps: int = 0
    means: np.ndarray
    hidden: np.ndarray
    ranks: tuple[int, ...] = ()
    is_divided: bool = False
    has_servers: bool = False

    @property
    def won(self) -> float:
        return self.won_seconds / self.step_seconds if self.step_seconds else 0.0


def judge(found: Timeline) -> Verdict:
    """Judge what a job is bound by, from its last steps."""
    found = found.last(MOST)
    count = len(found.steps)
    if count < FEWEST:
        shape = len(found.ranks), len(Part)
        return Verdict(
            bound=Bound.UNKNOWN, steps=count, means=np.zeros(shape), hidden=np.zeros(shape[0]), ranks=found.ranks
        )
    lengths = found.step.max(axis=1)
    calm = found.only(lengths <= np.quantile(lengths, CALM))
    means = calm.parts.mean(axis=0)
    step_seconds = float(calm.step.mean())
    shared = Verdict(
        bound=Bound.COMPUTING,
        step_seconds=step_seconds,
        steps=count,
        means=means,
        hidden=calm.hidden.mean(axis=0),
        ranks=found.ranks,
        is_divided=found.is_divided,
        has_servers=found.has_servers,
    )
    part, share = _largest(found, means, step_seconds)
    if part is not None and share >= LEAST_PART:
        shared = replace(shared, bound=_BOUND_BY[part], part=part, won_seconds=share * step_seconds)
    late = _late(calm, means)
    least = _avoidable(found, shared.part) * shared.won_seconds / 2
    if late is not None and late.part is not None and late.part is shared.part:
        # what it takes longer for is a part of the middle of few workers, and its own
        others = float(np.median(np.delete(means[:, late.part], late.place)))
        least = _avoidable(found, late.part) * others / 4
    if late is None or late.waited < max(LEAST_WAIT * step_seconds, least):
        return shared  # one slow worker is a fault, and is told first where the two are alike
    if late.part is not None and late.often >= LEAST_OFTEN and _lasts(calm, late, LEAST_WAIT * step_seconds):
        return replace(
            shared,
            bound=Bound.STRAGGLER,
            rank=found.ranks[late.place],
            part=late.part,
            won_seconds=late.waited,
            explained=late.explained,
            often=late.often,
        )
    waits = float(means[:, Part.WAIT].mean())
    if waits < max(LEAST_PART * step_seconds, shared.won_seconds):
        return shared
    return replace(shared, bound=Bound.UNEVEN, part=None, won_seconds=waits)


@dataclass(frozen=True)
class _Late:
    place: int
    waited: float  # seconds that the others wait for it in a step, more than it waits itself
    part: Part | None
    explained: float
    often: float


def _late(found: Timeline, means: np.ndarray) -> _Late | None:
    """Return the worker that comes last, and what it does longer than the others."""
    if len(found.ranks) < 2:
        return None
    waits = found.of(Part.WAIT)
    place = int(np.argmin(waits.mean(axis=0)))
    others = [index for index in range(len(found.ranks)) if index != place]
    # of each step: what the others wait, beyond what this one does
    behind = np.median(waits[:, others], axis=1) - waits[:, place]
    waited = float(behind.mean())
    often = float(np.mean(waits[:, place] <= waits.min(axis=1)))
    part, longer = what_is_longer(means[place], np.median(means[others], axis=0), found.own)
    explained = longer / waited if waited > 0 else 0.0
    return _Late(place, waited, part if explained >= EXPLAINED else None, min(explained, 1.0), often)


def _lasts(found: Timeline, late: _Late, least: float) -> bool:
    """The others wait for this worker in three quarters of the time: other programs come and go."""
    waits = found.of(Part.WAIT)
    others = [index for index in range(len(found.ranks)) if index != late.place]
    behind = np.median(waits[:, others], axis=1) - waits[:, late.place]
    quarters = [float(quarter.mean()) >= least / 2 for quarter in np.array_split(behind, _QUARTERS)]
    return sum(quarters) >= _QUARTERS - 1


def _avoidable(found: Timeline, part: Part | None) -> float:
    """Weigh a part for the comparison of causes; exchanging all weights with servers takes time."""
    return 0.5 if found.has_servers and part is Part.COMMUNICATION else 1.0


def _largest(found: Timeline, means: np.ndarray, step_seconds: float) -> tuple[Part | None, float]:
    """Return the largest part, other than computation, of the median worker, and its share of a step."""
    middle = np.median(means, axis=0)
    part = max(_BOUND_BY, key=lambda one: _avoidable(found, one) * float(middle[one]))
    return (part, float(middle[part]) / step_seconds) if step_seconds > 0 else (None, 0.0)
