"""One bit for each number: its sign, and what the positive and the negative ones of a group stand for."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist.compression import packing
from tfdist.compression.codec import Accuracy, RowCodec
from tfdist.compression.codecs import groups


@dataclass(frozen=True, kw_only=True)
class SignSGD(RowCodec):
    """The sign of each number times the mean |x| of its group. Only for use with `ErrorFeedback`.

    Args:
        group: numbers with a mean in common; a multiple of 32.

    Example:
        >>> SignSGD().row_words(512)
        17

    Source: S. P. Karimireddy, Q. Rebjock, S. Stich and M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", 2019, where the mean is of a layer.
    """

    name: ClassVar[str] = "signsgd"
    accuracy: ClassVar[Accuracy] = "biased"
    memory_is_of_updates: ClassVar[bool] = True

    group: int = groups.SIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        groups.require("group", self.group)

    @property
    def row_multiple(self) -> int:
        """Rows are made of whole groups."""
        return self.group

    def row_words(self, count: int) -> int:
        """Return the words of the signs, and one for the mean of each group."""
        return count // packing.WORD_BITS + count // self.group

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return which numbers are negative, and then the means."""
        means = tf.reduce_mean(tf.abs(groups.apart(rows, self.group)), axis=2)
        return tf.concat([packing.packed(tf.cast(rows < 0, tf.int32), 1), packing.as_words(means)], axis=1)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the means with the signs of the numbers."""
        signs, means = tf.split(words, [count // packing.WORD_BITS, count // self.group], axis=1)
        sign = tf.cast(1 - 2 * groups.apart(packing.unpacked(signs, 1), self.group), tf.float32)
        return groups.together(sign * packing.as_numbers(means)[..., tf.newaxis])


@dataclass(frozen=True, kw_only=True)
class OneBit(RowCodec):
    """The mean of the numbers of a group that are not negative, or that of those that are. Needs `ErrorFeedback`.

    Args:
        group: numbers with these two means in common; a multiple of 32.

    Example:
        >>> OneBit().row_words(512)
        18

    Source: F. Seide, H. Fu, J. Droppo, G. Li and D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", 2014. There the means are of a column of a matrix; groups are
    alike for tensors of any shape.
    """

    name: ClassVar[str] = "onebit"
    accuracy: ClassVar[Accuracy] = "biased"

    group: int = groups.SIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        groups.require("group", self.group)

    @property
    def row_multiple(self) -> int:
        """Rows are made of whole groups."""
        return self.group

    def row_words(self, count: int) -> int:
        """Return the words of the signs, and two for the means of each group."""
        return count // packing.WORD_BITS + 2 * (count // self.group)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return which numbers are negative, and then the two means of each group."""
        apart = groups.apart(rows, self.group)
        negative = tf.cast(apart < 0, tf.float32)
        low = tf.math.divide_no_nan(tf.reduce_sum(apart * negative, axis=2), tf.reduce_sum(negative, axis=2))
        high = tf.math.divide_no_nan(tf.reduce_sum(apart * (1 - negative), axis=2), tf.reduce_sum(1 - negative, axis=2))
        signs = packing.packed(tf.cast(rows < 0, tf.int32), 1)
        return tf.concat([signs, packing.as_words(low), packing.as_words(high)], axis=1)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the means."""
        each = count // self.group
        signs, low, high = tf.split(words, [count // packing.WORD_BITS, each, each], axis=1)
        negative = groups.apart(packing.unpacked(signs, 1), self.group) == 1
        low, high = (packing.as_numbers(one)[..., tf.newaxis] for one in (low, high))
        return groups.together(tf.where(negative, low, high))
