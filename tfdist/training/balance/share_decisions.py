"""Decisions on shares: pure functions of what workers have measured, the same on every worker.

A worker computes r rows in t seconds, so its speed is r / t. In balance each has rows in proportion to its speed, and
all compute for the same time. Loads no TensorFlow.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

#: shares change where the longest computing time falls by more than this part of it
DEAD_BAND = 0.05
#: a worker's input is slow where it waits for it for this part of its time, and is later than others by that
INPUT_BOUND = 0.2
#: the last windows that count: their mean is calmer than one, and a change of speed is seen soon
LOOK_BACK = 3
#: rows of a batch are told apart up to this many; `Shares` has a limit of its own
MOST_ROWS = 4096


@dataclass(frozen=True)
class Window:
    """The measurements of workers in some steps with the same shares.

    Attributes:
        rows: the number of rows of a batch that each worker has.
        computing: the median seconds from the beginning of a step to the worker's last gradient.
        input: the median seconds for which a step has waited for its batch.
    """

    rows: tuple[int, ...]
    computing: tuple[float, ...]
    input: tuple[float, ...]


@dataclass(frozen=True)
class Decision:
    """The rows of each worker from now on, and the worker whose input is slow, which fewer rows would not cure."""

    rows: tuple[int, ...]
    slow_input: int | None = None


def decide(
    history: Sequence[Window], rows: tuple[int, ...], *, max_change: float, most_rows: Sequence[int] | None = None
) -> Decision:
    """Return the rows that follow from the last windows of the history that have the present rows.

    The sum of rows stays. At most the part ``max_change`` of it moves. No worker gets more than ``most_rows``, which
    fit into its memory.

    Example:
        >>> decide([Window((8, 8), (0.1, 0.4), (0.0, 0.0))], (8, 8), max_change=0.5)
        Decision(rows=(13, 3), slow_input=None)
    """
    since = list(itertools.takewhile(lambda window: window.rows == rows, reversed(history[-LOOK_BACK:])))
    if not since or not all(seconds > 0 for window in since for seconds in window.computing):
        return Decision(rows)
    count = range(len(rows))
    computing = [sum(window.computing[worker] for window in since) / len(since) for worker in count]
    waiting = [sum(window.input[worker] for window in since) / len(since) for worker in count]
    own = [computing[worker] + waiting[worker] for worker in count]
    slowest = max(count, key=own.__getitem__)
    longer = own[slowest] - (sum(own) - own[slowest]) / max(1, len(own) - 1)
    if waiting[slowest] > max(INPUT_BOUND * own[slowest], longer / 2):
        return Decision(rows, slow_input=slowest if len(since) == LOOK_BACK else None)
    speeds = [mine / seconds for mine, seconds in zip(rows, computing, strict=True)]
    most = tuple(most_rows or (sum(rows),) * len(rows))
    wanted = apportioned(sum(rows), speeds, most)
    after = max(mine / speed for mine, speed in zip(wanted, speeds, strict=True))
    if after > (1 - DEAD_BAND) * max(computing):
        return Decision(rows)
    return Decision(_limited(rows, wanted, max_change))


def interval(every: int, unchanged: int) -> int:
    """Return the steps until the next comparison, after this many comparisons in a row without a change.

    The result is at most eight times ``every``. A comparison waits for all workers once, which slows short steps.

    Example:
        >>> [interval(20, unchanged) for unchanged in (0, 2, 3, 6, 9, 100)]
        [20, 20, 40, 80, 160, 160]
    """
    return every << min(unchanged // LOOK_BACK, 3)


def apportioned(total: int, weights: Sequence[float], most: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers in proportion to weights, from 1 to the given limits, which add up to the total.

    Each row goes to the worker with which the longest time stays shortest, as if rows were handed out one by one.

    Example:
        >>> apportioned(10, [4.0, 1.0], (7, 10))
        (7, 3)
    """
    places = range(len(weights))
    scale = max(0, total - len(weights)) / sum(weights)
    found = [min(most[place], max(1, int(scale * weights[place]))) for place in places]
    while sum(found) < total:
        free = [place for place in places if found[place] < most[place]] or list(places)
        found[min(free, key=lambda place: (found[place] + 1) / weights[place])] += 1
    while sum(found) > total:
        taken = max((place for place in places if found[place] > 1), key=lambda place: found[place] / weights[place])
        found[taken] -= 1
    return tuple(found)


def _limited(rows: tuple[int, ...], wanted: tuple[int, ...], max_change: float) -> tuple[int, ...]:
    """Return rows on the way to the wanted ones, with at most this part of the batch moved."""
    moved = sum(abs(new - old) for old, new in zip(rows, wanted, strict=True)) / 2
    allowed = max(1.0, max_change * sum(rows))
    if moved <= allowed:
        return wanted
    steps = [(new - old) * allowed / moved for old, new in zip(rows, wanted, strict=True)]
    found = [old + int(step) for old, step in zip(rows, steps, strict=True)]
    rest = sum(rows) - sum(found)  # whole rows that rounding towards the old ones has left over
    for place in sorted(range(len(rows)), key=lambda place: int(steps[place]) - steps[place])[: max(rest, 0)]:
        found[place] += 1
    for place in sorted(range(len(rows)), key=lambda place: steps[place] - int(steps[place]))[: max(-rest, 0)]:
        found[place] -= 1
    return tuple(found)


def rows_of(weights: Sequence[int], batch: int, most: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return each worker's rows of a batch by weights; a large batch is counted in units of several rows."""
    total = min(batch, MOST_ROWS)
    caps = tuple(max(1, one * total // batch) for one in most) if most else (total,) * len(weights)
    return apportioned(total, weights, caps)
