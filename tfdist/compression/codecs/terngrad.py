"""TernGrad: minus one, zero or one times the largest number of each group, drawn so that the mean is the number."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy
from tfdist.compression.codecs import levels, scaled_groups

_BITS = 2


@dataclass(frozen=True, kw_only=True)
class TernGrad(scaled_groups.GroupCodec):
    """Two bits for each number: s sign(x) with probability |x| / s, else zero, where s is the largest |x| of a group.

    Unbiased, unless numbers are clipped: then those beyond ``clip`` standard deviations of their group are cut to it,
    which makes s, and with it the noise, smaller.

    Args:
        clip: in standard deviations about zero; None for none.
        group: numbers with an s in common; a multiple of 32.

    Example:
        >>> TernGrad().row_words(512)
        33

    Source: W. Wen, C. Xu, F. Yan, C. Wu, Y. Wang, Y. Chen and H. Li, "TernGrad: Ternary Gradients to Reduce
    Communication in Distributed Deep Learning", 2017. There s is of a layer, the same for all workers, and clipping
    (2.5) is the rule.
    """

    name: ClassVar[str] = "terngrad"
    accuracy: ClassVar[Accuracy] = "unbiased"

    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            validation.number("clip", self.clip, above=0)

    def row_words(self, count: int) -> int:
        """Return the words of two bits for each number, and one for the largest of each group."""
        return levels.words(count, _BITS, self.group)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return -1, 0 or 1, plus one, and then the largest of each group."""
        largest = scaled_groups.largest(rows, self.group)
        if self.clip is not None:
            deviation = tf.sqrt(scaled_groups.sums(rows, self.group, "squares") * (1 / self.group))
            largest = tf.minimum(largest, self.clip * deviation)  # what is larger has level 1 as well
        return levels.encode(rows, largest, seed, bits=_BITS, group=self.group)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return minus the largest, zero or the largest."""
        return levels.decode(words, count, bits=_BITS, group=self.group)
