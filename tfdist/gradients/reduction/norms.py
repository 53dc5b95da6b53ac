"""Norms and checks over all gradients, if a process has only a part of them."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.gradients.reduction import replica_sums

#: returns the sums of a vector over the processes that have the other parts
Total = Callable[[tf.Tensor], tf.Tensor]


def are_finite(grads: Sequence[Any], total: Total) -> tf.Tensor:
    """Return whether all elements of all parts are finite, the same on every process."""
    bad = tf.cast(tf.logical_not(replica_sums.are_finite(list(grads))), tf.float32)
    return tf.equal(total(tf.reshape(bad, [1]))[0], 0)


def clipped(
    grads: list[Any],
    total: Total,
    *,
    clipnorm: float | None = None,
    global_clipnorm: float | None = None,
    clipvalue: float | None = None,
) -> list[Any]:
    """Return gradients clipped as Keras does, given this process's parts: squares are summed over all parts."""
    if clipvalue is not None and clipvalue > 0:
        return [replica_sums.mapped(lambda value: tf.clip_by_value(value, -clipvalue, clipvalue), one) for one in grads]
    limit = clipnorm or global_clipnorm
    there = [one for one in grads if one is not None]
    if limit is None or limit <= 0 or not there:
        return grads
    totals = total(tf.stack([squares(one) for one in there]))
    if not clipnorm:
        norm = tf.sqrt(tf.reduce_sum(totals))
        scale = limit / tf.maximum(norm, limit) + (norm - norm)  # NaN for a norm that is not finite, as in Keras
        return [None if one is None else _scaled(one, scale) for one in grads]
    scales = iter(tf.unstack(limit / tf.maximum(tf.sqrt(totals), limit), num=len(there)))
    return [None if one is None else _scaled(one, next(scales)) for one in grads]


def squares(gradient: Any) -> tf.Tensor:
    """Return the sum of squares, float64; rows with the same index are not added up first."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32  # squares of float16 overflow at 256
    return tf.cast(2.0 * tf.nn.l2_loss(tf.cast(values, wide)), tf.float64)  # which makes no tensor of squares


def all_squares(gradients: Sequence[Any]) -> tf.Tensor:
    return tf.add_n([squares(one) for one in gradients])


def _scaled(gradient: Any, scale: tf.Tensor) -> Any:
    return replica_sums.mapped(lambda value: value * tf.cast(scale, value.dtype), gradient)
