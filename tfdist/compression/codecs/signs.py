"""One bit per number: its sign, with one magnitude per group for positive and negative numbers."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist.compression import packing
from tfdist.compression.codec import Accuracy
from tfdist.compression.codecs import scaled_groups
from tfdist.compression.kernels import kernels, shaped


@dataclass(frozen=True, kw_only=True)
class SignSGD(scaled_groups.GroupCodec):
    """The sign of each number times the mean |x| of its group. Use it only with `ErrorFeedback`.

    Args:
        group: the count of numbers that share a mean; a multiple of 32.

    Example:
        >>> SignSGD().row_words(512)
        17

    Source: S. P. Karimireddy, Q. Rebjock, S. Stich and M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", 2019, where each layer has one mean.
    """

    name: ClassVar[str] = "signsgd"
    accuracy: ClassVar[Accuracy] = "biased"
    memory_is_of_updates: ClassVar[bool] = True

    def row_words(self, count: int) -> int:
        """Return the count of words for the signs, and one word for the mean of each group."""
        return count // packing.WORD_BITS + count // self.group

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the signs, and then the means."""
        means = scaled_groups.sums(rows, self.group, "sizes") * (1 / self.group)
        return tf.concat([_signs(rows), packing.as_words(means)], axis=1)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the means with the signs of the numbers."""
        signs, means = tf.split(words, [count // packing.WORD_BITS, count // self.group], axis=1)
        means = packing.as_numbers(means)
        return _by_sign(signs, -means, means, self.group)


@dataclass(frozen=True, kw_only=True)
class OneBit(scaled_groups.GroupCodec):
    """The mean of a group's non-negative numbers, or of its negative ones. Use it only with `ErrorFeedback`.

    Args:
        group: the count of numbers that share these two means; a multiple of 32.

    Example:
        >>> OneBit().row_words(512)
        18

    Source: F. Seide, H. Fu, J. Droppo, G. Li and D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", 2014. There each column of a matrix has its means; groups work
    in the same way for tensors of any shape.
    """

    name: ClassVar[str] = "onebit"
    accuracy: ClassVar[Accuracy] = "biased"

    def row_words(self, count: int) -> int:
        """Return the count of words for the signs, and two words for the means of each group."""
        return count // packing.WORD_BITS + 2 * (count // self.group)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the signs, and then the two means of each group."""
        signs = _signs(rows)
        counts = tf.cast(tf.raw_ops.PopulationCount(x=signs), tf.float32)
        negative = tf.reduce_sum(scaled_groups.apart(counts, self.group // packing.WORD_BITS), axis=2)
        low = tf.math.divide_no_nan(scaled_groups.sums(rows, self.group, "negatives"), negative)
        high = tf.math.divide_no_nan(scaled_groups.sums(rows, self.group, "positives"), self.group - negative)
        return tf.concat([signs, packing.as_words(low), packing.as_words(high)], axis=1)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return for each number the mean of its group for its sign."""
        each = count // self.group
        signs, low, high = tf.split(words, [count // packing.WORD_BITS, each, each], axis=1)
        return _by_sign(signs, packing.as_numbers(low), packing.as_numbers(high), self.group)


def _signs(rows: tf.Tensor) -> tf.Tensor:
    """Return the signs, 32 in a word."""
    ops = kernels()
    if ops is not None:
        return shaped(ops.tfdist_to_signs(rows), [rows.shape[0], rows.shape[1] // packing.WORD_BITS])
    return packing.packed(tf.cast(packing.is_negative(rows), tf.int32), 1)


def _by_sign(signs: tf.Tensor, low: tf.Tensor, high: tf.Tensor, group: int) -> tf.Tensor:
    """Return for each sign one of the two numbers of its group: the low one for a negative sign."""
    ops = kernels()
    if ops is not None:
        rows = ops.tfdist_from_signs(signs, low, high, group=group)
        return shaped(rows, [signs.shape[0], signs.shape[1] * packing.WORD_BITS])
    is_negative = scaled_groups.apart(packing.unpacked(signs, 1), group) == 1
    return scaled_groups.together(tf.where(is_negative, low[..., tf.newaxis], high[..., tf.newaxis]))
