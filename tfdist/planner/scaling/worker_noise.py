"""The delay of the last of several workers behind the mean one. Loads no TensorFlow."""

import math
from functools import cache
from statistics import NormalDist

_WIDTH = 10.0  # standard deviations on both sides
_PARTS = 4000


@cache
def _curve() -> tuple[float, ...]:
    """Return values of the normal distribution function at the middles of `_PARTS` intervals."""
    normal, step = NormalDist(), 2 * _WIDTH / _PARTS
    return tuple(normal.cdf(-_WIDTH + (place + 0.5) * step) for place in range(_PARTS))


@cache
def expected_maximum(workers: int) -> float:
    """Return the mean of the largest of this many standard normal numbers.

    For large n it approaches sqrt(2 ln n) from below.

    Example:
        >>> [round(expected_maximum(n), 3) for n in (1, 2, 1024)]
        [0.0, 0.564, 3.248]
    """
    if workers == 1:
        return 0.0
    step, half = 2 * _WIDTH / _PARTS, _PARTS // 2
    powers = [value**workers for value in _curve()]
    return math.fsum([*(1 - value for value in powers[half:]), *(-value for value in powers[:half])]) * step


def waiting(workers: int, noise: float, every: int = 1) -> float:
    """Return the mean delay of the last worker behind an average one, as a part of a step.

    If workers wait for each other only every few steps, differences level out: the noise of the sum grows as its root.
    """
    return noise * expected_maximum(workers) / math.sqrt(every)
