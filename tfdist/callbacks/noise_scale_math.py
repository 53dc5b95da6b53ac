"""The gradient noise scale from gradient norms at two batch sizes, as pure functions; loads no TensorFlow.

McCandlish et al. 2018, appendix A.1: with G the gradient over all data and S the covariance of the gradient of one
example, the gradient of a batch of B examples has E |G_B|^2 = |G|^2 + tr(S) / B. Two batch sizes give two equations.
"""

import math
from dataclasses import dataclass

from tfdist import validation


@dataclass(frozen=True, kw_only=True)
class Norms:
    """One measurement: the mean of |gradient|^2 over small batches, and |gradient|^2 of the big batch."""

    small_batch: int
    big_batch: int
    small: float
    big: float

    @property
    def squared_gradient(self) -> float:
        """The estimate of |G|^2, without bias; it may be negative.

        Example:
            >>> Norms(small_batch=1, big_batch=4, small=5.0, big=2.0).squared_gradient
            1.0
        """
        weighted = self.big_batch * self.big - self.small_batch * self.small
        return weighted / (self.big_batch - self.small_batch)

    @property
    def noise(self) -> float:
        """The estimate of tr(S), without bias.

        Example:
            >>> Norms(small_batch=1, big_batch=4, small=5.0, big=2.0).noise
            4.0
        """
        return (self.small - self.big) / (1 / self.small_batch - 1 / self.big_batch)


class Averages:
    """Moving averages of both estimates, kept separately: their ratio has less bias than the average of ratios.

    Example:
        >>> averages = Averages(0.5)
        >>> averages.add(Norms(small_batch=1, big_batch=4, small=5.0, big=2.0))
        >>> averages.noise_scale
        4.0
    """

    def __init__(self, decay: float) -> None:
        self.decay = validation.number("decay", decay, minimum=0)
        validation.number("1 - decay", 1 - decay, above=0, hint="An average that never changes measures nothing.")
        self._squared_gradient = self._noise = self._weight = 0.0
        self.measurements = 0

    def add(self, norms: Norms) -> None:
        """Add a measurement; one that is not finite (training has diverged) is left out."""
        if not math.isfinite(norms.small) or not math.isfinite(norms.big):
            return
        self._squared_gradient = self.decay * self._squared_gradient + (1 - self.decay) * norms.squared_gradient
        self._noise = self.decay * self._noise + (1 - self.decay) * norms.noise
        self._weight = self.decay * self._weight + 1 - self.decay
        self.measurements += 1

    @property
    def squared_gradient(self) -> float:
        """The average of |G|^2; NaN before the first measurement."""
        return self._squared_gradient / self._weight if self._weight else math.nan

    @property
    def noise(self) -> float:
        """The average of tr(S); NaN before the first measurement."""
        return self._noise / self._weight if self._weight else math.nan

    @property
    def noise_scale(self) -> float:
        """tr(S) / |G|^2 in examples; infinite if no gradient is seen behind the noise; NaN without a measurement."""
        if not self._weight:
            return math.nan
        return max(self.noise, 0.0) / self.squared_gradient if self.squared_gradient > 0 else math.inf

    def get_state(self) -> dict[str, float]:
        """Return all measurements so far, as JSON."""
        return {
            "squared_gradient": self._squared_gradient,
            "noise": self._noise,
            "weight": self._weight,
            "measurements": self.measurements,
        }

    def set_state(self, state: dict[str, float]) -> None:
        """Resume from the result of `get_state`."""
        self._squared_gradient, self._noise = float(state["squared_gradient"]), float(state["noise"])
        self._weight, self.measurements = float(state["weight"]), int(state["measurements"])


def verdict(averages: Averages, batch: int) -> str:
    """Return a sentence about the batch size that the noise scale recommends.

    With the learning rate tuned to each, a batch of B examples needs (1 + b / B) times the fewest steps and (1 + B / b)
    times the fewest examples, where b is the noise scale.

    Example:
        >>> averages = Averages(0.0)
        >>> averages.add(Norms(small_batch=1, big_batch=4, small=5.0, big=2.0))
        >>> verdict(averages, 16).partition(";")[0][-80:]
        'A batch of 16 needs 1.2 times the fewest steps and 5.0 times the fewest examples'
    """
    scale, count = averages.noise_scale, averages.measurements
    measured = validation.counted(count, "measurement")
    if not count:
        return "gradient noise scale: nothing was measured."
    if math.isinf(scale):
        return (
            f"gradient noise scale: far above {batch:,} examples (no gradient is seen behind the noise, {measured}). "
            f"Batches above {batch:,} pay; measure with a larger batch_size to see up to where."
        )
    size = f"{scale:,.0f}" if scale >= 1 else f"{scale:.2g}"
    steps, examples = 1 + scale / batch, 1 + batch / scale if scale else math.inf
    return (
        f"gradient noise scale: {size} examples (average of {measured}). A batch of {batch:,} needs {steps:.1f} times "
        f"the fewest steps and {examples:.1f} times the fewest examples; above about {size} examples a batch is too "
        "large to pay: one of twice the size saves less than 25 % of the steps and takes over 50 % more examples."
    )
