"""Ids of rows to look up: all equally popular, or a few much more popular than the others."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw"]

# a prime that spreads the popular rows over the table, as hashing does
_SPREAD = 2_654_435_761


def draw(how: str, count: int, rows: int, *, seed: int = 11) -> NDArray[np.int32]:
    """Return ids of rows.

    Args:
        how: "uniform"; or "power law": the row of rank r in proportion to 1 / r, popular rows spread over the table.
        count: how many ids.
        rows: of the table; ids are below.
        seed: of the random numbers.

    Example:
        >>> draw("power law", 8192, 1000).shape
        (8192,)
    """
    uniform = np.random.default_rng(seed).random(count)
    if how == "uniform":
        return (uniform * rows).astype(np.int32)
    ranks = np.minimum(((rows + 1.0) ** uniform).astype(np.int64) - 1, rows - 1)
    return (ranks * _SPREAD % rows).astype(np.int32)
