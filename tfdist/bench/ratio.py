"""Medians and ratios of measurements that took turns."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Quartiles", "Spread", "quartiles", "ratio", "spread"]


@dataclass(frozen=True)
class Quartiles:
    """The quartiles of measurements, one per round."""

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.lower:.2f}-{self.upper:.2f}]"


def quartiles(values: Sequence[float]) -> Quartiles:
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(median, lower, upper)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Quartiles:
    """The quartiles of paired measurements, one pair per round."""
    return quartiles([a / b for a, b in zip(numerators, denominators, strict=True)])


@dataclass(frozen=True)
class Spread:
    """A mean, and 1.96 standard deviations over all rounds, as Horovod's synthetic benchmarks print them."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        digits = 1 if self.mean >= 10 else 2
        return f"{self.mean:.{digits}f} +- {self.deviation:.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), 1.96 * statistics.pstdev(values))
