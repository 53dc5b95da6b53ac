"""Noise that clients add to their words, enough for the privacy of the sum, whichever clients are lost.

Values are rounded before the noise, and the noise is of whole steps. A sum of rounded Gaussian noises is at least as
noisy as a Gaussian of their summed variances, whose privacy is known, as long as each is some steps wide.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigError
from tfdist.federated.secure.fixed_point import FixedPoint
from tfdist.federated.secure.mask_stream import Words

_LEAST_STEPS = 4.0  # below, a rounded noise tells a little more than a Gaussian
_MOST_ROUNDING = 0.1  # of the clipping norm, that is kept free for rounding
_TAIL = 10.0  # standard deviations that a word has room for


@dataclass(frozen=True, kw_only=True)
class NoisyWords:
    """The noise of a client in a sum."""

    code: FixedPoint  # the code of values, whose ``clip`` is the clipping norm of a client's vector
    noise_multiplier: float  # the standard deviation of the noise of the sum, in units of that norm
    clients: int  # the number of clients that begin the sum
    honest: int  # the number of clients that are in every revealed sum and tell no other client their noise
    length: int  # the length of a vector

    def __post_init__(self) -> None:
        if self.honest < 1:
            raise ConfigError(
                f"of {self.clients} clients none is sure to be honest and in the sum, so its noise is not bounded. "
                "Raise threshold, lower colluding, or take more clients.",
                name="threshold",
                received=self.honest,
            )
        widest = self.code.clients + _TAIL * self.noise_multiplier * math.sqrt(self.clients / self.honest)
        too_rough = self._rounding > _MOST_ROUNDING or 0 < self.deviation < _LEAST_STEPS
        if too_rough or widest * self.code.largest >= 1 << (self.code.bits - 1):
            what = "too few for this noise" if too_rough else "too many for a word with this noise"
            raise ConfigError(
                f"value_bits is {self.code.value_bits}, {what}: {self.length:,} values, {self.clients} clients, noise "
                f"multiplier {self.noise_multiplier:.3g}, words of {self.code.bits} bits. "
                f"Pass {'more' if too_rough else 'fewer'} value_bits to SecureSums, or bits=64.",
                name="value_bits",
                received=self.code.value_bits,
            )

    @property
    def deviation(self) -> float:
        """The standard deviation of a client's noise, in steps."""
        return self.noise_multiplier * self.code.largest / math.sqrt(self.honest)

    @property
    def _rounding(self) -> float:
        """The largest norm of a vector of rounding errors, as a fraction of the clipping norm."""
        return math.sqrt(self.length) / 2 / self.code.largest

    @property
    def clip(self) -> float:
        """The norm to which a vector is clipped, so that the rounded vector stays below the code's ``clip``."""
        return self.code.clip * (1 - self._rounding)

    def added(self, words: Words, generator: np.random.Generator) -> Words:
        """Return the words with noise; overflows wrap, in the sum as well, and reveal nothing more."""
        noise: NDArray[np.float64] = np.rint(self.deviation * generator.standard_normal(len(words)))
        return words + noise.astype(np.int64).astype(words.dtype)
