"""Floats as integers whose sum modulo 2^bits is exact: the use of each bit, and the check that no sum overflows.

A value is clipped to [-clip, clip] and rounded to a signed integer of `value_bits`; a client multiplies it by its
weight. The sum over all clients fits if bits(value) + bits(weight) + ceil(log2(clients)) <= bits.

Example:
    >>> code = FixedPoint(clip=1.0, value_bits=16, largest_weight=100, clients=100)
    >>> words, clipped = code.encode(np.array([0.5, -2.0], np.float32), weight=3)
    >>> code.decode(words) / 3, clipped
    (array([ 0.50001526, -1.        ]), 1)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.federated.secure.mask_stream import Words, word_type

_EXACT_FLOAT32 = 22  # bits of a value up to which rounding in float32 is exact


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """The code of one round."""

    clip: float  # the largest magnitude of a value; larger values are clipped, and counted
    value_bits: int = 16  # the bits of a value with its sign
    largest_weight: int = 1  # the largest weight of a client, an integer
    clients: int  # the largest number of clients whose vectors are added
    bits: int = 32  # the bits of a word, 32 or 64

    def __post_init__(self) -> None:
        validation.number("clip", self.clip, above=0.0)
        validation.integer("value_bits", self.value_bits, minimum=2, maximum=53)
        validation.integer("largest_weight", self.largest_weight, minimum=1)
        validation.integer("clients", self.clients, minimum=1)
        validation.one_of("bits", self.bits, (32, 64))
        weight, count = self.largest_weight.bit_length(), (self.clients - 1).bit_length()
        needed = self.value_bits + weight + count
        if needed > self.bits:
            raise ConfigError(
                f"a sum needs {needed} bits ({self.value_bits} of a value, {weight} of a weight up to "
                f"{self.largest_weight}, {count} for {self.clients} clients), and a word has {self.bits}. Take "
                "bits=64, fewer value_bits, or a smaller largest_weight.",
                name="value_bits",
                received=self.value_bits,
            )

    @property
    def largest(self) -> int:
        """The integer that stands for ``clip``."""
        return (1 << (self.value_bits - 1)) - 1

    def encode(self, values: NDArray[np.floating], weight: int) -> tuple[Words, int]:
        """Return the weighted words of a flat array, and the number of values that were clipped."""
        validation.integer("weight", weight, minimum=0, maximum=self.largest_weight)
        exact = np.float32 if values.dtype == np.float32 and self.value_bits <= _EXACT_FLOAT32 else np.float64
        scaled = np.multiply(values, self.largest / self.clip, dtype=exact)
        if not np.isfinite(scaled).all():
            raise ConfigError(
                "an update has values that are not finite; a sum of integers has no place for them. Lower the learning "
                "rate of the clients, or clip their gradients.",
                name="values",
            )
        clipped = int(np.count_nonzero(np.abs(scaled) > self.largest + 0.5))
        np.clip(scaled, -self.largest, self.largest, out=scaled)
        integers = np.rint(scaled, out=scaled).astype(f"<i{self.bits // 8}")
        integers *= weight
        return integers.view(word_type(self.bits)), clipped

    def decode(self, words: Words) -> NDArray[np.float64]:
        """Return the sum of all weighted values that these summed words stand for."""
        return words.view(f"<i{self.bits // 8}").astype(np.float64) * (self.clip / self.largest)
