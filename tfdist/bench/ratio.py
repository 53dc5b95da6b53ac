"""Medians and ratios of measurements that took turns."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Quartiles", "Spread", "quartiles", "ratio", "spread"]


@dataclass(frozen=True)
class Quartiles:
    """The quartiles of measurements, one per round.

    Attributes:
        median: half of the rounds were below.
        lower: a quarter of the rounds were below.
        upper: a quarter of the rounds were above.
    """

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.lower:.2f}-{self.upper:.2f}]"


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return median and quartiles of at least one value.

    Example:
        >>> str(quartiles([1.0, 2.0, 3.0]))
        '2.00 [1.50-2.50]'
    """
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(median, lower, upper)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Quartiles:
    """Return median and quartiles of the ratios of paired measurements, one pair per round.

    Example:
        >>> str(ratio([2.0, 4.0, 6.0], [2.0, 2.0, 2.0]))
        '2.00 [1.50-2.50]'
    """
    return quartiles([a / b for a, b in zip(numerators, denominators, strict=True)])


@dataclass(frozen=True)
class Spread:
    """A mean, and 1.96 standard deviations of the single measurements, as Horovod's synthetic benchmarks print them.

    Attributes:
        mean: of the rounds.
        deviation: 1.96 times the standard deviation of the rounds (over all of them, not estimated from a sample).
    """

    mean: float
    deviation: float

    def __str__(self) -> str:
        digits = 1 if self.mean >= 10 else 2
        return f"{self.mean:.{digits}f} +- {self.deviation:.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    """Return mean and 1.96 standard deviations of at least one value.

    Example:
        >>> str(spread([9.0, 11.0]))
        '10.0 +- 2.0'
    """
    return Spread(statistics.fmean(values), 1.96 * statistics.pstdev(values))
