"""How the replicas' gradients become one: a mean, a sum, or Adasum, in the dtype that travels."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import tf_strategies
from tfdist.training import reduction

KINDS = ("mean", "sum", "adasum")


def over_replicas(
    parts: list[Any],
    *,
    kind: str,
    wire_dtype: str | None,
    examples: tf.Tensor,
    labels: Sequence[str],
    rows_matter: bool,
) -> list[Any]:
    """Return the gradients of all replicas as one, equal bit for bit on every replica.

    Args:
        parts: of this replica, tensors or `tf.IndexedSlices`: what it adds to the mean over all examples. Sums of some
            of them are no larger than the largest gradient, so that float16 does not overflow on the way.
        kind: one of `KINDS`.
        wire_dtype: what they are rounded to before they leave, or None.
        examples: of all replicas, int64 scalar.
        labels: what the gradients are, for messages.
        rows_matter: see `reduction.sum_over_replicas`.
    """
    replicas = tf_strategies.replica_count(tf.distribute.get_strategy())
    if replicas > 1 and kind == "adasum":
        return _adasum(parts, replicas, wire_dtype, labels)
    sums = list(parts)
    if replicas > 1:
        sent = [reduction.travelling(part, wire_dtype) for part in parts]
        arrived = reduction.sum_over_replicas(sent, labels=labels, rows_matter=rows_matter)
        sums = [_as(part.dtype, total) for total, part in zip(arrived, parts, strict=True)]
    if kind == "sum":
        return [reduction.mapped(lambda value: value * tf.cast(examples, value.dtype), total) for total in sums]
    return sums


def _as(dtype: tf.DType, gradient: Any) -> Any:
    return reduction.mapped(lambda value: tf.cast(value, dtype), gradient)


def are_finite(gradients: list[Any]) -> tf.Tensor:
    """Return whether all values of all gradients are finite, bool scalar.

    Example:
        >>> bool(are_finite([tf.constant([1.0]), None, tf.constant([float("inf")])]))
        False
    """
    values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    found = [tf.reduce_all(tf.math.is_finite(value)) for value in values if value is not None]
    return tf.reduce_all(tf.stack(found)) if found else tf.constant(True)


def _adasum(parts: list[Any], replicas: int, wire_dtype: str | None, labels: Sequence[str]) -> list[tf.Tensor]:
    """Return Adasum of the replicas' gradients, each times what its share of examples is to an even share.

    Every replica puts its gradient into a row of its own among zeros; the sum over replicas is all of them.
    """
    index = tf_strategies.replica_index()
    dense = [tf.convert_to_tensor(part) for part in parts]
    rows = []
    for part in dense:
        row = reduction.travelling(part * tf.cast(replicas, part.dtype), wire_dtype)[None]
        rows.append(tf.pad(row, [[index, replicas - 1 - index]] + [[0, 0]] * part.shape.rank))
    gathered = reduction.sum_over_replicas(rows, labels=labels)
    return [
        combined([tf.cast(one, part.dtype) for one in tf.unstack(every, num=replicas)])
        for every, part in zip(gathered, dense, strict=True)
    ]


def combined(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return Adasum of gradients of one variable: neighbours, then pairs of pairs; an odd one goes up as it is.

    Of two, with <a, b> over the whole variable:

        a (1 - <a, b> / 2|a|^2) + b (1 - <a, b> / 2|b|^2)

    which is a + b if they are orthogonal and their mean if they are equal.

    Args:
        gradients: at least one, of one shape and dtype.

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
