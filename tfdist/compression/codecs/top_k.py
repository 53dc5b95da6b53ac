"""Top-k: the largest numbers, and where they are."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression import packing
from tfdist.compression.codec import Accuracy, RowCodec
from tfdist.compression.kernels import kernels, shaped


@dataclass(frozen=True, kw_only=True)
class TopK(RowCodec):
    """The largest |x| of each part of a gradient, with their places: 64 bits each. For use with `ErrorFeedback`.

    Of as many parts as there are members each has its own k. At density 1 nothing is lost.

    Args:
        density: the part of the numbers that travels.

    Example:
        >>> TopK(density=0.01).row_words(1000)
        20

    Source: A. F. Aji and K. Heafield, "Sparse Communication for Distributed Gradient Descent", 2017. Sums of several
    members' numbers are cut to the largest again, so that bytes do not grow with the number of members.
    """

    name: ClassVar[str] = "topk"
    accuracy: ClassVar[Accuracy] = "biased"

    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("density", self.density, above=0, maximum=1)

    def row_words(self, count: int) -> int:
        """Return the words of k places and k numbers."""
        return 2 * kept(count, self.density)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the places, and then the numbers."""
        return largest(rows, kept(rows.shape[1], self.density))

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers in their places, and zeros."""
        return spread(words, count)


def kept(count: int, density: float) -> int:
    """Return how many numbers of a row travel: at least one.

    Example:
        >>> kept(1000, 0.01), kept(10, 0.01)
        (10, 1)
    """
    return min(count, max(1, round(count * density)))


def largest(rows: tf.Tensor, k: int | tf.Tensor) -> tf.Tensor:
    """Return the places of the k largest |x| of each row, in ascending order, and then their values, as words.

    Of equal ones those that come first; NaN is larger than all numbers.
    """
    ops = kernels()
    if ops is not None:
        places = ops.tfdist_largest(rows, k)
        shaped(places, [rows.shape[0], k if isinstance(k, int) else None])
    else:
        sizes = packing.as_words(tf.abs(rows))  # as integers the bits are in the order of the numbers
        places = tf.sort(tf.math.top_k(sizes, k, sorted=False).indices, axis=1)
    return tf.concat([places, packing.as_words(tf.gather(rows, places, batch_dims=1))], axis=1)


def spread(words: tf.Tensor, count: int) -> tf.Tensor:
    """Return rows of zeros with numbers at their places."""
    places, values = tf.split(words, 2, axis=1)
    rows = words.shape[0]
    at = places + tf.range(rows)[:, tf.newaxis] * count
    flat = tf.scatter_nd(tf.reshape(at, [-1, 1]), tf.reshape(packing.as_numbers(values), [-1]), [rows * count])
    return tf.reshape(flat, [rows, count])
