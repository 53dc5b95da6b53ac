"""Distances between updates, as float64 differences in blocks of columns.

The shorter formula, |a|^2 + |b|^2 - 2ab, subtracts numbers that are nearly equal: near convergence, clients' weights
differ by far less than their size, and in float32 many such distances are negative.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_NUMBERS = 1 << 20  # of all updates together, in float64: 8 MiB

Float = NDArray[np.float64]


def blocks(updates: NDArray[Any]) -> Iterator[tuple[slice, Float]]:
    """Yield ranges of columns, and the updates in these columns as float64."""
    count, size = updates.shape
    width = max(1, _BLOCK_NUMBERS // max(count, 1))
    for begin in range(0, size, width):
        columns = slice(begin, min(begin + width, size))
        yield columns, updates[:, columns].astype(np.float64)


def squared_distances(updates: NDArray[Any]) -> Float:
    """Return the squared distance of each pair, float64 ``[n, n]``; infinite if it exceeds every float64."""
    count = len(updates)
    total = np.zeros((count, count))
    with np.errstate(over="ignore"):
        for _, values in blocks(updates):
            for one in range(count - 1):
                difference = values[one + 1 :] - values[one]
                total[one, one + 1 :] += np.einsum("ij,ij->i", difference, difference)
    return total + total.T


def squared_distances_to(point: Float, updates: NDArray[Any]) -> Float:
    """Return the squared distance of each update from one point, float64 ``[n]``."""
    total = np.zeros(len(updates))
    with np.errstate(over="ignore"):
        for columns, values in blocks(updates):
            difference = values - point[columns]
            total += np.einsum("ij,ij->i", difference, difference)
    return total


def mean_of(updates: NDArray[Any], weights: Float) -> Float:
    """Return the weighted mean, in float64; an update of weight 0 counts for nothing, whatever it holds."""
    there = np.flatnonzero(weights)
    factors = weights[there] / weights[there].sum()
    result = np.empty(updates.shape[1])
    for columns, values in blocks(updates[there] if len(there) < len(updates) else updates):
        result[columns] = factors @ values
    return result
