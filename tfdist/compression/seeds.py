"""The seeds of a step: what is drawn depends on the step, the tensor and the member, and on nothing else."""

import tensorflow as tf

from tfdist.compression.messages import Context


def context(
    rank: int | tf.Tensor,
    size: int,
    *,
    step: int | tf.Tensor = 0,
    seed: int = 0,
    place: int = 0,
    slower: tf.Tensor | None = None,
) -> Context:
    """Return the context of one tensor in one step.

    Example:
        >>> one, other = context(0, 2, step=5), context(1, 2, step=5)
        >>> bool(tf.reduce_all(one.shared_seed == other.shared_seed))
        True
        >>> bool(tf.reduce_all(one.own_seed == other.own_seed))
        False
    """
    at = tf.cast(step, tf.int32)
    shared = _folded(tf.constant([seed, place]), at)
    return Context(size, rank, at, _folded(shared, tf.cast(rank, tf.int32) + 1), shared, slower)


def _folded(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, number, alg="philox")
