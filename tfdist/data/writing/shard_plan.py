"""Divide examples into shards: contiguous ranges with nearly equal bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigError

#: bytes of a shard, where their number is not given
SHARD_BYTES = 256 << 20


def cuts(
    count: int, *, sizes: NDArray[np.int64] | None, example_bytes: int, num_shards: int | None, shard_bytes: int
) -> list[tuple[int, int]]:
    """Return the first example of each shard and the one behind its last.

    Example:
        >>> cuts(10, sizes=None, example_bytes=1, num_shards=3, shard_bytes=0)
        [(0, 3), (3, 7), (7, 10)]
    """
    total = count * example_bytes if sizes is None else int(sizes.sum())
    shards = num_shards or min(count, max(1, -(-total // shard_bytes)))
    if shards > count:
        raise ConfigError(
            f"num_shards is {shards}; there are {count} examples, and a shard has at least one.",
            name="num_shards",
            received=shards,
        )
    if sizes is None:
        ends = [round(count * (shard + 1) / shards) for shard in range(shards)]
    else:
        ends = _balanced(np.cumsum(sizes), shards)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _balanced(sums: Any, shards: int) -> list[int]:
    """Return where to cut so that each piece has about its share; each gets at least one example."""
    count, ends, begin = len(sums), [], 0
    for shard in range(1, shards):
        goal = sums[-1] * shard / shards
        end = int(np.searchsorted(sums, goal))
        # the cut before or behind the example that crosses the line, whichever is nearer
        if end and goal - sums[end - 1] > sums[end] - goal:
            end += 1
        elif not end:
            end = 1
        begin = min(max(end, begin + 1), count - (shards - shard))
        ends.append(begin)
    return [*ends, count]
