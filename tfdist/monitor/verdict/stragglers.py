"""The detection of workers that are slow by themselves in successive steps: pure functions of the steps of all workers.

All steps take equally long, since workers wait for each other. So each worker's own time is compared with the median of
the others', in robust deviations. Loads no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfdist.monitor.verdict.step_parts import Part, Timeline, what_is_longer

#: steps in which a worker is slow, one after the other, by so many robust deviations of the others
SLOW_STEPS, DEVIATIONS = 20, 3.5
#: and so that the others wait for this part of their steps
WAITED = 0.05

# for normal numbers: the standard deviation over the median distance from the median, in the smaller half
_ROBUST_HALF = 2.5


@dataclass(frozen=True, kw_only=True)
class Slow:
    worker: int
    part: Part  # what took it longer
    steps: int  # how many, from `first` to `last`
    first: int
    last: int
    seconds: float  # its own time of a step, the median; `others` is that of the median worker
    others: float
    waited: float  # the part of a step for which all others waited for it
    began: float  # of the first and the last of these steps, on the monotonic clock, seconds
    ended: float
    goes_on: bool  # it was still slow in the last known step

    @property
    def text(self) -> str:
        by = 1e3 * (self.seconds - self.others)
        return (
            f"worker {self.worker} was slower than the others by {by:.3g} ms in {self.steps} steps: {self.part.label}"
        )


def slow_workers(found: Timeline) -> list[Slow]:
    """Return the workers for which the others have waited in many successive steps."""
    if len(found.ranks) < 2 or not len(found.steps):
        return []
    own = found.parts[:, :, found.own].sum(axis=2)
    slow = []
    for place, rank in enumerate(found.ranks):
        others = np.delete(own, place, axis=1)
        usual = np.median(others, axis=1)
        noise = max(_calm_deviation(others[:, other]) for other in range(others.shape[1]))
        run = _last_run(own[:, place] - usual > DEVIATIONS * noise, SLOW_STEPS)
        if run is None:
            continue
        step = found.step[run].mean()
        waits = np.delete(found.of(Part.WAIT), place, axis=1)[run]
        if waits.mean() < WAITED * step:
            continue
        parts = found.parts[run]
        theirs = np.median(np.delete(parts, place, axis=1), axis=1)
        more, theirs = np.median(parts[:, place] - theirs, axis=0), np.median(theirs, axis=0)
        slow.append(
            Slow(
                worker=rank,
                part=what_is_longer(theirs + more, theirs, found.own)[0],
                steps=run.stop - run.start,
                first=int(found.steps[run.start]),
                last=int(found.steps[run.stop - 1]),
                seconds=float(np.median(usual[run]) + np.median((own[:, place] - usual)[run])),
                others=float(np.median(usual[run])),
                waited=float(waits.mean(axis=0).min() / step),
                began=float(found.ends[run.start, place]),
                ended=float(found.ends[run.stop - 1, place]),
                goes_on=run.stop == len(found.steps),
            )
        )
    return slow


class Staying:
    """A tracker of slow workers over several looks, each of which has only the last steps."""

    def __init__(self) -> None:
        self._slow: dict[int, Slow] = {}

    def look(self, slow: Sequence[Slow], *, known_from: int = 0) -> list[Slow]:
        """Return the workers that are slow now, with the number of steps since they became slow."""
        found = {}
        for one in slow:
            if not one.goes_on:
                continue
            before = self._slow.get(one.worker)
            # steps between two looks, if there are many, are taken to be like those before and after
            if before is not None and (one.first <= before.last + 1 or one.first == known_from):
                steps = before.steps + (one.last - before.last)
                one = replace(one, first=before.first, began=before.began, steps=steps)
            found[one.worker] = one
        self._slow = found
        return list(found.values())


def _calm_deviation(values: np.ndarray) -> float:
    """Return the deviation of the smaller half of the values, so that a slow period does not count as noise."""
    calm = np.sort(values)[: len(values) // 2 + 1]
    return float(_ROBUST_HALF * np.median(np.abs(calm - np.median(calm))))


def _last_run(holds: np.ndarray, length: int) -> slice | None:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8)))
    runs = [slice(int(begin), int(end)) for begin, end in edges.reshape(-1, 2) if end - begin >= length]
    return runs[-1] if runs else None
