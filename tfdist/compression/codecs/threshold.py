"""Threshold: numbers that have grown beyond a fixed one travel as that number, with their places."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy, Codec, Exchange
from tfdist.compression.messages import AllGather, Context, Exchanged


@dataclass(frozen=True, kw_only=True)
class Threshold(Codec):
    """Each |x| from t on is sent as sign(x) t: one word, its place and its sign. For use with `ErrorFeedback`.

    What travels is as much as has grown large enough: as many bytes as the gradients have news. Members' words are
    gathered, so bytes grow with the number of members.

    Args:
        threshold: t, of a member's mean gradient.
        expected_density: the part of the numbers that is expected to travel; for what is predicted, nothing else.

    Example:
        >>> Threshold(threshold=1e-3).accuracy
        'biased'

    Source: N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", 2015.
    """

    name: ClassVar[str] = "threshold"
    accuracy: ClassVar[Accuracy] = "biased"

    threshold: float = 1e-3
    expected_density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("threshold", self.threshold, above=0)
        validation.number("expected_density", self.expected_density, above=0, maximum=1)

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of a gathering of as many words as are expected."""
        return (members - 1) * 4 * self.expected_density * spec.shape.num_elements()

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Gather the words of all members, and add up what they stand for."""
        flat = tf.reshape(tensor, [-1])
        step = tf.cast(self.threshold / context.size, tensor.dtype)  # members' tensors are parts of a mean
        places = tf.cast(tf.where(tf.abs(flat) >= step)[:, 0], tf.int32)
        negative = tf.cast(tf.gather(flat, places) < 0, tf.int32)
        own = 2 * places + negative

        def numbers(words: tf.Tensor) -> tf.Tensor:
            signs = tf.cast(1 - 2 * tf.bitwise.bitwise_and(words, 1), tensor.dtype)
            at = tf.bitwise.right_shift(words, 1)
            return tf.reshape(tf.math.unsorted_segment_sum(signs * step, at, tensor.shape.num_elements()), tensor.shape)

        words = yield AllGather(own[:, tf.newaxis])
        return Exchanged(numbers(words[:, 0]), numbers(own), state)
