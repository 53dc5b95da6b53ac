"""The next batch to try, as a pure function of earlier trials: doubling, bisection, refinement."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

NEAR = 0.95  # of the best speed: what the smallest batch that is nearly as fast must have
_CLOSE = 1.5  # neighbours of a fast batch that are no further apart are not looked between


class Outcome(StrEnum):
    FITS = "fits"
    TOO_LARGE = "out of memory"
    SHORT = "too few data"  # to fill the batch, or to fill it often enough: nothing larger can be tried
    FAILED = "failed"  # for another reason


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A trial: the batch, its outcome, and the examples per second if it fits."""

    batch: int
    outcome: Outcome
    speed: float = 0.0


def following(trials: Sequence[Tried], *, start: int, most: int, precision: float) -> int | None:
    """Return the batch to try next; None at the end.

    Double until one does not fit, or halve until one does; then bisect the border. A batch counts as too large after
    two trials, because other processes may have had the memory. Finally, bisect the gaps next to the fastest batch, and
    below the smallest one that is nearly as fast.
    """
    if not trials:
        return start
    fits = {one.batch for one in trials if one.outcome is Outcome.FITS}
    if not fits:  # a smaller batch only helps against lack of memory
        if any(one.outcome is Outcome.FAILED for one in trials):
            return None
        if (smallest := min(one.batch for one in trials)) > 1:
            return smallest // 2
        return 1 if sum(one.batch == 1 for one in trials) < 2 and trials[-1].outcome is Outcome.TOO_LARGE else None
    low = max(fits)
    above = [one for one in trials if one.batch > low]
    if not above and low < most:
        return min(2 * low, most)
    if above and not any(one.outcome is Outcome.SHORT for one in above):
        high = min(one.batch for one in above)
        if high - low > max(1, math.floor(precision * low)):
            return (low + high) // 2
        if sum(one.batch == high for one in above) < 2:
            return high
    return _closer(trials)


def _closer(trials: Sequence[Tried]) -> int | None:
    speeds = _speeds(trials)
    sizes = sorted(speeds)
    for batch in dict.fromkeys((nearly_best(trials), fastest(trials))):
        place = sizes.index(batch)
        for lower, upper in zip(sizes[max(0, place - 1) : place + 1], sizes[max(1, place) : place + 2], strict=False):
            middle = round(math.sqrt(lower * upper))
            if upper > _CLOSE * lower and lower < middle < upper:
                return middle
    return None


def _speeds(trials: Sequence[Tried]) -> dict[int, float]:
    return {one.batch: one.speed for one in trials if one.outcome is Outcome.FITS}


def largest(trials: Sequence[Tried]) -> int:
    return max(_speeds(trials))


def fastest(trials: Sequence[Tried]) -> int:
    """Return the batch with the most examples per second; ties go to the smallest."""
    speeds = _speeds(trials)
    return min(speeds, key=lambda batch: (-speeds[batch], batch))


def nearly_best(trials: Sequence[Tried]) -> int:
    """Return the smallest batch that is within 5 % of the fastest."""
    speeds = _speeds(trials)
    return min(batch for batch, speed in speeds.items() if speed >= NEAR * max(speeds.values()))
