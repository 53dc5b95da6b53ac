"""Ratios of measurements that took turns."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "ratio"]


@dataclass(frozen=True)
class Ratio:
    """The quartiles of round-by-round ratios.

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


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return median and quartiles of the ratios of paired measurements, one pair per round.

    Example:
        >>> str(ratio([2.0, 4.0, 6.0], [2.0, 2.0, 2.0]))
        '2.00 [1.50-2.50]'
    """
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, lower, upper)
