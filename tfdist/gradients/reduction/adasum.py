"""Adaptive summation: what is orthogonal in gradients adds up, what is parallel is averaged."""

from collections.abc import Sequence

import tensorflow as tf


def combined(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return Adasum of gradients of one variable: neighbours, then pairs of pairs; an odd one goes up as it is.

    Of two, with <a, b> over the whole variable:

        a (1 - <a, b> / 2|a|^2) + b (1 - <a, b> / 2|b|^2)

    which is a + b if they are orthogonal and their mean if they are equal.

    Example:
        >>> a = tf.constant([3.0, 0.0])
        >>> [combined([a, b]).numpy().tolist() for b in (a, tf.constant([0.0, 1.0]))]
        [[3.0, 0.0], [3.0, 1.0]]

    Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020. The paper has a power of two
    of workers.
    """
    level = list(gradients)
    while len(level) > 1:
        odd = level[len(level) - len(level) % 2 :]
        level = [_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=False)] + odd
    return level[0]


def _pair(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    wide = [tf.reshape(tf.cast(one, tf.float64), [-1]) for one in (a, b)]
    dot = tf.tensordot(*wide, axes=1)

    def factor(own: tf.Tensor) -> tf.Tensor:
        return tf.cast(1.0 - tf.math.divide_no_nan(dot, 2.0 * tf.tensordot(own, own, axes=1)), a.dtype)

    return a * factor(wide[0]) + b * factor(wide[1])
