"""The count, extremes, mean and deviation of numbers that come in pieces. Pure, in NumPy.

Pieces are merged by the formula of T. Chan, G. Golub and R. LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances", 1979. Sums are of differences from one of the numbers. So numbers far from zero, such as
times in nanoseconds, keep their digits.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 18  # numbers; as float64 they fit into a cache
_MOST_EXACT = 1 << 63  # differences of integers below it fit into 64 bits


@dataclass(frozen=True)
class Moments:
    """The counts, extremes and moments of numbers; `mean_offset` and `squares` are relative to `origin`.

    `count`, the extremes and the moments are of finite numbers; `nan` and `infinite` count the others.
    """

    count: int = 0
    nan: int = 0
    infinite: int = 0
    low: float | int = math.inf
    high: float | int = -math.inf
    origin: float | int = 0
    mean_offset: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float | None:
        return float(self.origin + self.mean_offset) if self.count else None

    @property
    def deviation(self) -> float | None:
        """The root of the mean squared difference from the mean, as `numpy.std` defines it."""
        return math.sqrt(max(0.0, self.squares) / self.count) if self.count else None


def moments_of(values: NDArray[Any]) -> Moments:
    """Return the moments of an array of booleans, integers or floats, of any shape."""
    flat = np.asarray(values).reshape(-1)
    found = Moments()
    for begin in range(0, flat.size, _PIECE):
        found = merged(found, _of_piece(flat[begin : begin + _PIECE]))
    return found


def merged(one: Moments, other: Moments) -> Moments:
    """Return the moments of the numbers of both arguments together."""
    nan, infinite = one.nan + other.nan, one.infinite + other.infinite
    if not one.count or not other.count:
        return replace(one if one.count else other, nan=nan, infinite=infinite)
    count = one.count + other.count
    apart = float(other.origin - one.origin) + (other.mean_offset - one.mean_offset)
    return Moments(
        count=count,
        nan=nan,
        infinite=infinite,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        origin=one.origin,
        mean_offset=one.mean_offset + apart * (other.count / count),
        squares=one.squares + other.squares + apart * apart * (one.count / count) * other.count,
    )


def _of_piece(values: NDArray[Any]) -> Moments:
    nan = infinite = 0
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        if not finite.all():
            nan = int(np.isnan(values).sum())
            infinite = int(values.size - finite.sum()) - nan
            values = values[finite]
        values = values.astype(np.float64)
    elif values.dtype.kind == "b":
        values = values.astype(np.int64)
    if not values.size:
        return Moments(nan=nan, infinite=infinite)
    low, high, origin = values.min().item(), values.max().item(), values[0].item()
    if isinstance(origin, int) and high - low < _MOST_EXACT:
        # differences wrap around as the numbers do, so those of uint64 are right, too
        wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
        apart = (wide - wide[0]).view(np.int64).astype(np.float64)
    else:
        apart = values.astype(np.float64) - float(origin)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(apart.mean())
        rest = apart - mean
        squares = float((rest * rest).sum() - rest.sum() ** 2 / rest.size)
    return Moments(values.size, nan, infinite, low, high, origin, mean, squares)
