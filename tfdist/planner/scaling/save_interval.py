"""The best interval between saves for a job that fails, from the useful time in closed form.

Loads no TensorFlow.
"""

import math
from dataclasses import dataclass

import numpy as np

from tfdist import validation

_EXACT_TERMS = 1000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NOTHING = 40.0  # exponents from which on a part is left out: 4e-18
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The failures of a job, and the time of its recovery."""

    mtbf_seconds: float  # the mean time between two failures of the job
    restart_seconds: float = 0.0  # the time from a failure until training continues; the job may fail during it
    # the shape of the Weibull distribution of the times between failures. 1: a failure is equally likely at every
    # moment; below 1: it is more likely soon after a start, as measured on clusters (0.7 to 0.8)
    shape: float = 1.0

    def __post_init__(self) -> None:
        validation.number("mtbf_seconds", self.mtbf_seconds, above=0)
        validation.number("restart_seconds", self.restart_seconds, minimum=0)
        validation.number("shape", self.shape, minimum=0.3, maximum=10)

    @property
    def scale_seconds(self) -> float:
        """The scale of the Weibull distribution, whose mean is the mean time between failures."""
        return self.mtbf_seconds / math.gamma(1 + 1 / self.shape)

    def of_workers(self, workers: int) -> "Failures":
        """Return the failures of a job that stops when any of its workers fails, if each worker has these failures."""
        return Failures(
            mtbf_seconds=self.mtbf_seconds / workers, restart_seconds=self.restart_seconds, shape=self.shape
        )


def young(save_seconds: float, mtbf_seconds: float) -> float:
    """Return the best seconds of training between two saves, if a save is short: sqrt(2 save mtbf).

    Source: J. Young, "A first order approximation to the optimum checkpoint interval", 1974.

    Example:
        >>> young(2.0, 10_000.0)
        200.0
    """
    return math.sqrt(2 * save_seconds * mtbf_seconds)


def daly(save_seconds: float, mtbf_seconds: float) -> float:
    """Return the best seconds of training between two saves that may be long, with failures at a constant rate.

    Source: J. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 37.

    Example:
        >>> round(daly(2.0, 10_000.0), 1)
        198.7
    """
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = save_seconds / (2 * mtbf_seconds)
    return young(save_seconds, mtbf_seconds) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


def useful_part(interval: float, save_seconds: float, failures: Failures) -> float:
    """Return the part of the time that is kept training, with a save after each interval of training.

    After a failure a job restarts (r), then trains and saves in turn (t and d). What it has saved when it fails again
    is kept, so with S(x), the probability that it runs longer than x, and the mean time m:

        t (S(r + t + d) + S(r + 2 (t + d)) + ...) / m

    Where failures are equally likely at every moment this is Daly's t / (m e^(r / m) (e^((t + d) / m) - 1)).
    """
    turn = interval + save_seconds
    if failures.shape == 1:
        mean = failures.mtbf_seconds
        if turn / mean > _NOTHING or failures.restart_seconds / mean > _NOTHING:
            return 0.0
        return interval * math.exp(-failures.restart_seconds / mean) / (mean * math.expm1(turn / mean))
    return interval * _turns(turn, failures) / failures.mtbf_seconds


def _turns(turn: float, failures: Failures) -> float:
    """Return the mean number of whole turns before a failure: a sum whose far terms are replaced by an integral."""
    scale, shape = failures.scale_seconds, failures.shape
    last = (scale * _NOTHING ** (1 / shape) - failures.restart_seconds) / turn
    near = min(int(max(last, 0)), _EXACT_TERMS)
    places = failures.restart_seconds + turn * np.arange(1, near + 1)
    found = float(np.exp(-((places / scale) ** shape)).sum())
    begin = near + 0.5
    while begin < last and near == _EXACT_TERMS:
        end = 2 * begin
        at = failures.restart_seconds + turn * ((end - begin) * _NODES + end + begin) / 2
        found += float((_WEIGHTS * np.exp(-((at / scale) ** shape))).sum()) * (end - begin) / 2
        begin = end
    return found


def best_interval(save_seconds: float, failures: Failures) -> float:
    """Return the seconds of training between two saves that maximize the useful part of the time.

    Example:
        >>> round(best_interval(2.0, Failures(mtbf_seconds=10_000.0)), 1)
        198.7
    """
    validation.number("save_seconds", save_seconds, above=0)
    about = math.log(daly(save_seconds, failures.mtbf_seconds))

    def lost(logarithm: float) -> float:
        return -useful_part(math.exp(logarithm), save_seconds, failures)

    low, high = about - 4, about + 4
    while high - low > 1e-6:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if lost(left) <= lost(right) else (left, high)
    return math.exp((low + high) / 2)
