"""The eviction of a worker that stays slow, by a standby or by continuing without it: pure functions.

`--standby`: a standby worker takes over, once for each place, because a slow replacement is not the process's fault.
`--min-workers`: on one host the others continue, if they are faster despite its share of the batch. Otherwise, after
three evictions, or without saved state, it stays, which is reported.

Every eviction costs a restart, so each requires twice the slow time of the one before.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from tfdist.jobs.supervision.halting import begun
from tfdist.jobs.supervision.supervisor_state import Evict, Next, Purpose, State, shown

if TYPE_CHECKING:
    from tfdist.monitor.verdict.stragglers import Slow

#: evictions of a job
MOST = 3
#: the least part of a step that a standby must win
LEAST_WON = 0.2


class Measure(StrEnum):
    REPLACED = "replaced"
    LEFT_OUT = "left out"
    KEPT = "kept"


@dataclass(frozen=True, kw_only=True)
class Evictions:
    """Earlier evictions, and the places whose process was replaced."""

    count: int = 0
    replaced: frozenset[int] = field(default_factory=frozenset)

    def after(self, worker: int, measure: Measure) -> "Evictions":
        """Add an eviction.

        Example:
            >>> Evictions(replaced=frozenset({0, 2})).after(1, Measure.LEFT_OUT).replaced == {0, 1}
            True
        """
        replaced = self.replaced | {worker}
        if measure is Measure.LEFT_OUT:  # those behind it move up
            replaced = frozenset(one - (one > worker) for one in self.replaced - {worker})
        return Evictions(count=self.count + 1, replaced=replaced)


@dataclass(frozen=True, kw_only=True)
class Means:
    """The means of an eviction: several hosts are refilled in order, so one worker fewer might not be the slow one."""

    workers: int
    min_workers: int
    has_standby: bool
    keeps_state: bool
    is_on_one_host: bool = True


@dataclass(frozen=True, kw_only=True)
class Decided:
    measure: Measure
    why: str = ""


def is_due(slow: "Slow", before: Evictions, *, patience_seconds: float) -> bool:
    return slow.ended - slow.began >= patience_seconds * 2**before.count


def what_to_do(slow: "Slow", before: Evictions, means: Means) -> Decided:
    """Return the measure for a worker that has been slow for long enough."""
    if not means.keeps_state:
        return Decided(measure=Measure.KEPT, why="the script trains without tfdist.callbacks.BackupAndRestore")
    if before.count >= MOST:
        return Decided(measure=Measure.KEPT, why=f"the job has evicted {MOST} workers already")
    reasons, won, left = [], f"{slow.waited:.0%} of a step", means.workers - 1
    if means.has_standby:
        if slow.worker in before.replaced:
            reasons.append("its place was taken by a standby before")
        elif slow.waited < LEAST_WON:
            reasons.append(f"a standby would win {won}, less than {LEAST_WON:.0%}")
        else:
            return Decided(measure=Measure.REPLACED)
    if left < means.min_workers:
        reasons.append(f"{shown(left)} would be left, and --min-workers is {means.min_workers}")
    elif not means.is_on_one_host:
        reasons.append("on several hosts one worker fewer would not be the slow one")
    elif (1 - slow.waited) * means.workers >= left:
        reasons.append(f"without it the others would win {won}, and have its part of the batch to compute")
    else:
        return Decided(measure=Measure.LEFT_OUT)
    return Decided(measure=Measure.KEPT, why="; ".join(reasons))


def told(slow: "Slow", decided: Decided) -> str:
    """Return a sentence that names the slow worker, compares it with the median, and states the measure."""
    follows = {
        Measure.REPLACED: "a standby takes its place",
        Measure.LEFT_OUT: "the others continue without it",
        Measure.KEPT: f"it stays: {decided.why}",
    }
    return (
        f"worker {slow.worker} takes {1e3 * slow.seconds:.3g} ms of a step by itself, the others "
        f"{1e3 * slow.others:.3g} ms (median), in {slow.steps} steps ({slow.part.label}); {follows[decided.measure]}"
    )


def may_evict(state: State) -> bool:
    """True if workers step, and nothing else is about to happen."""
    return state.deadline is None and state.halt is None and state.steps


def evicted(state: State, event: Evict, now: float) -> Next:
    """Let all stop before the same step, and continue without the slow process."""
    if not may_evict(state) or state.leaving or state.wanted != state.size or event.worker not in state.running:
        return state, ()
    if not event.is_replaced:
        state = replace(state, leaving=frozenset({event.worker}))
    return begun(state, Purpose.EVICT, event.text, now)
