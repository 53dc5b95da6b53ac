"""The bottleneck of a job, from the recorded steps of its workers, and the text that describes it.

All workers' steps and reductions take equally long, because workers wait for each other. The last worker is the one for
which the others wait. A cause is named only if it explains four fifths of that waiting. Numbers are means over the
shorter half of the steps: pauses do not count, and, unlike medians, parts still add up.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from tfdist.errors import ConfigError
from tfdist.monitor.recording import row_ring
from tfdist.monitor.verdict.step_parts import COMPUTING, Part, Timeline, of_workers, timeline, what_is_longer

#: steps that a verdict needs, and the last ones that it looks at
FEWEST, MOST = 20, 1000
#: the share of the steps that is looked at: the shorter ones
CALM = 0.5
#: the share of the waiting that a cause has to explain
EXPLAINED = 0.8
#: the share of a step that the others must wait for a worker before it is named
LEAST_WAIT = 0.05
#: the share of the steps in which a worker must come last before it is named
LEAST_OFTEN = 0.6
#: the share of a step that an activity other than computation must take before the job is bound by it
LEAST_PART = 0.15


class Bound(StrEnum):
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
    bound: Bound
    rank: int | None = None  # the slow worker, or None
    part: Part | None = None  # what takes its time there; None where nothing explains enough
    step_seconds: float = 0.0  # the mean of a calm step
    won_seconds: float = 0.0  # how much shorter a step would be without it; 0 if unknown
    explained: float = 0.0  # the part of the waiting that the cause explains
    often: float = 0.0  # the part of the steps in which this worker came last
    steps: int = 0  # on which this is based
    means: np.ndarray  # seconds of each part on each worker, shape (workers, parts)
    hidden: np.ndarray  # of communication during the backward pass, shape (workers,)
    ranks: tuple[int, ...] = ()
    is_divided: bool = False  # the graph had stamps
    has_servers: bool = False  # workers exchange with servers, not with each other

    @property
    def won(self) -> float:
        return self.won_seconds / self.step_seconds if self.step_seconds else 0.0


def judge(found: Timeline) -> Verdict:
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
    if late.part is not None and late.often >= LEAST_OFTEN and _lasts(late, LEAST_WAIT * step_seconds):
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
    behind: np.ndarray  # seconds of each step that the others wait for it, more than it waits itself
    part: Part | None
    explained: float
    often: float

    @property
    def waited(self) -> float:
        return float(self.behind.mean())


def _late(found: Timeline, means: np.ndarray) -> _Late | None:
    """Return the worker that comes last, and the parts of a step in which it takes longer than the others."""
    if len(found.ranks) < 2:
        return None
    waits = found.of(Part.WAIT)
    place = int(np.argmin(waits.mean(axis=0)))
    others = [index for index in range(len(found.ranks)) if index != place]
    behind = np.median(waits[:, others], axis=1) - waits[:, place]
    waited = float(behind.mean())
    often = float(np.mean(waits[:, place] <= waits.min(axis=1)))
    part, longer = what_is_longer(means[place], np.median(means[others], axis=0), found.own)
    explained = longer / waited if waited > 0 else 0.0
    return _Late(place, behind, part if explained >= EXPLAINED else None, min(explained, 1.0), often)


def _lasts(late: _Late, least: float) -> bool:
    """Return whether the others wait for this worker in three quarters of the time: other programs come and go."""
    quarters = [float(quarter.mean()) >= least / 2 for quarter in np.array_split(late.behind, _QUARTERS)]
    return sum(quarters) >= _QUARTERS - 1


def _avoidable(found: Timeline, part: Part | None) -> float:
    """Return the weight of a part in the comparison of causes; exchanging all weights with servers takes time."""
    return 0.5 if found.has_servers and part is Part.COMMUNICATION else 1.0


def _largest(found: Timeline, means: np.ndarray, step_seconds: float) -> tuple[Part | None, float]:
    """Return the largest part, other than computation, of the median worker, and its share of a step."""
    middle = np.median(means, axis=0)
    part = max(_BOUND_BY, key=lambda one: _avoidable(found, one) * float(middle[one]))
    return (part, float(middle[part]) / step_seconds) if step_seconds > 0 else (None, 0.0)


#: steps of which alerts are raised: enough to know what is usual, and for twice as many norms as are looked at
RECENT = 1024


def read_folder(folder: Path) -> dict[int, np.ndarray]:
    found = {}
    for path in folder.glob("worker-*"):
        try:
            rows = row_ring.read(path)
        except (OSError, ConfigError):  # it ends meanwhile
            continue
        if len(rows):
            found[int(path.name.partition("-")[2])] = rows
    return found


def verdict_of(folder: Path) -> Verdict | None:
    rows = read_folder(folder)
    return judge(timeline(of_workers(rows))) if rows else None


def recent(folder: Path) -> Timeline | None:
    """Return the last steps of the workers of a start; None if no worker has recorded a step."""
    rows = {rank: found[-RECENT:] for rank, found in read_folder(folder).items()}
    return timeline(of_workers(rows)) if rows else None


_WHAT = {
    Part.INPUT: "waits for its input",
    Part.FORWARD: "takes longer for its forward pass",
    Part.BACKWARD: "takes longer for its backward pass",
    Part.COMPUTE: "computes longer",
    Part.COMMUNICATION: "exchanges weights and gradients with the servers for longer",
    Part.UPDATE: "takes longer to update its weights",
    Part.CHECKPOINT: "writes checkpoints",
    Part.PYTHON: "is in Python between steps",
}
_NEXT_OF_PART = {
    Part.INPUT: "look at the input and the disk of that worker: tfdist doctor, on its machine",
    Part.FORWARD: "tfdist doctor, on the machine of that worker: other programs, clock of the processor, memory",
    Part.BACKWARD: "tfdist doctor, on the machine of that worker: other programs, clock of the processor, memory",
    Part.COMPUTE: "tfdist doctor, on that worker's machine; if it stays slow: tfdist.callbacks.BalanceShares",
    Part.COMMUNICATION: "ping from that worker's machine to the servers', and what else sends there: tfdist doctor",
    Part.UPDATE: "look at what that worker alone does in its optimizer, and at its memory: tfdist doctor",
    Part.CHECKPOINT: "save less often, or to a faster disk",
    Part.PYTHON: "look at the callbacks of that worker: py-spy dump --pid PID",
}
_NEXT = {
    Bound.UNKNOWN: "let it run for more steps",
    Bound.UNEVEN: "look for other programs on the machines, or fewer threads for each worker: tfdist doctor",
    Bound.INPUT: "cache, batch before map, prefetch, or write TFRecord files: tfdist data write",
    Bound.COMPUTING: "tfdist tune: a larger batch; or mixed precision, or more workers",
    Bound.COMMUNICATION: 'tfdist bench all-reduce; then DistributedOptimizer(compression="auto"), or a larger batch',
    Bound.UPDATE: "tfdist run --strategy sharded-data-parallel: each worker updates its part of the weights",
    Bound.CHECKPOINT: "save less often, or to a faster disk",
    Bound.PYTHON: "model.compile(steps_per_execution=20), or less work in callbacks",
}
_NEXT_WITH_SERVERS = {
    Bound.COMMUNICATION: 'a larger batch; more --parameter-servers; or DistributedOptimizer(compression="qsgd-8")',
    Bound.UPDATE: "more --parameter-servers, each of which updates its part of the weights; or a larger batch",
}


def lines(verdict: Verdict) -> tuple[str, ...]:
    if verdict.bound is Bound.UNKNOWN:
        return (
            f"verdict    too few steps: {verdict.steps} were seen on all workers, 20 are needed",
            "where      -",
            "won        -",
            "evidence   steps in which a function is traced do not count, nor do those of validation",
            f"next       {_NEXT[verdict.bound]}",
        )
    seconds, left = verdict.step_seconds, verdict.step_seconds - verdict.won_seconds
    won = f"{verdict.won:.0%} of a step: {_ms(seconds)} now, {_ms(left)} without it"
    if verdict.bound is Bound.COMPUTING:
        won = f"nothing beside it takes a large part of a step of {_ms(seconds)}"
    return (
        f"verdict    bound by {verdict.bound}",
        f"where      {_where(verdict)}",
        f"won        {won}",
        f"evidence   {_evidence(verdict)}",
        f"next       {_next(verdict)}",
    )


def labelled(verdict: Verdict) -> dict[str, dict[str, float]]:
    return {
        str(rank): {part.label: round(float(row[part]), 9) for part in Part}
        for rank, row in zip(verdict.ranks, verdict.means, strict=True)
    }


def _where(verdict: Verdict) -> str:
    if verdict.rank is not None and verdict.part is not None:
        return f"worker {verdict.rank} {_WHAT[verdict.part]}"
    if verdict.bound is Bound.UNEVEN:
        return "no worker comes last often enough, or does one thing longer, to be named"
    return "all workers, alike" if len(verdict.ranks) > 1 else f"worker {verdict.ranks[0]}"


def _evidence(verdict: Verdict) -> str:
    if verdict.rank is not None and verdict.part is not None:
        place = verdict.ranks.index(verdict.rank)
        parts = list(COMPUTING) if verdict.part is Part.COMPUTE and verdict.is_divided else [verdict.part]
        seconds = verdict.means[:, parts].sum(axis=1)
        mine, others = seconds[place], [seconds[i] for i in range(len(verdict.ranks)) if i != place]
        other = sorted(others)[len(others) // 2]
        return (
            f"{verdict.part.label} {_ms(mine)} there, {_ms(other)} elsewhere; last in {verdict.often:.0%} of "
            f"{verdict.steps} steps; explains {verdict.explained:.0%} of what others wait"
        )
    middle = sorted(range(len(verdict.ranks)), key=lambda i: -verdict.means[i, Part.WAIT])[len(verdict.ranks) // 2]
    row = verdict.means[middle]
    shown = sorted((part for part in Part if row[part] > 0.005 * verdict.step_seconds), key=lambda part: -row[part])
    text = ", ".join(f"{part.label} {_ms(row[part])}" for part in shown[:5])
    return f"{text} (worker {verdict.ranks[middle]}; means of {verdict.steps} steps, pauses left out)"


def _next(verdict: Verdict) -> str:
    if verdict.has_servers and verdict.bound in _NEXT_WITH_SERVERS:
        return _NEXT_WITH_SERVERS[verdict.bound]
    return (
        _NEXT_OF_PART[verdict.part] if verdict.rank is not None and verdict.part is not None else _NEXT[verdict.bound]
    )


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
