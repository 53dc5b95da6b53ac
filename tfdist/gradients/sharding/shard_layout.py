"""The part of each variable that a worker updates, as pure functions. No TensorFlow.

A variable is divided by elements: each worker has a stretch of the flattened variable, and the lengths differ by one
element at most. So each worker has 1 / p of every variable, and nothing is padded. Stretches are those of
`numpy.array_split`, by which the rule "concatenate" of `checkpoint.state_resizing` divides.
"""

import heapq
from collections.abc import Sequence
from typing import Any

from tfdist import validation
from tfdist.errors import UnsupportedError


def stretch(count: int, index: int, size: int) -> tuple[int, int]:
    """Return the bounds of a worker's part of the elements of a variable.

    Example:
        >>> [stretch(7, index, 3) for index in range(3)], stretch(1, 2, 3)
        ([(0, 3), (3, 5), (5, 7)], (1, 1))
    """
    whole, more = divmod(count, size)
    begin = index * whole + min(index, more)
    return begin, begin + whole + (index < more)


def owners(counts: Sequence[int], size: int) -> list[int]:
    """Return the worker of each undivided variable: the largest first, each to the worker with the least so far.

    No worker has more than the mean plus the largest variable.

    Example:
        >>> owners([4, 9, 3, 3], 2)
        [1, 0, 1, 1]
    """
    loads = [(0, 0, index) for index in range(size)]  # elements, then variables, so that empty ones are dealt out too
    chosen = [0] * len(counts)
    for place in sorted(range(len(counts)), key=lambda place: (-counts[place], place)):
        held, number, index = heapq.heappop(loads)
        chosen[place] = index
        heapq.heappush(loads, (held + counts[place], number + 1, index))
    return chosen


def require_stage(name: str, stage: Any) -> None:
    """Raise unless a value is a stage of sharded data parallelism, or None."""
    if stage is not None:
        validation.integer(name, stage, minimum=1, maximum=3)


def require_one_cpu(stage: int | None, devices: Sequence[str]) -> None:
    """Raise unless a worker has one CPU replica, if optimizers are sharded."""
    if stage is not None and (len(devices) > 1 or "GPU" in devices[0]):
        raise UnsupportedError(
            f"shard_optimizer is {stage}, which needs workers with one CPU replica each, and this one has the replicas "
            f"{', '.join(devices)}. Start a process for each replica (tfdist run -n), on CPUs, or leave "
            "shard_optimizer out.",
            name="shard_optimizer",
            received=stage,
        )
