"""Operations composed of others, for backends that lack them; equal for all backends, so their results are equal."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives.collective import Collective, count_of, cut, require_rows, with_rows

#: dtypes that are added in float32
HALVES = (tf.float16, tf.bfloat16)


def reduce_scatter(collective: Collective, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
    """Sum and scatter by `all_to_all` and additions in the order of ranks.

    A member moves S (n - 1) / n of S bytes, as in a ring, and holds S bytes for the others' parts.
    """
    parts = collective.all_to_all(require_rows(tensor), key=key)
    dtype, wide = tensor.dtype, tf.float32 if tensor.dtype in HALVES else tensor.dtype
    split = tf.reshape(parts, with_rows([collective.size, cut(tensor, collective.size)[collective.rank]], tensor))
    if dtype == tf.bool:
        return tf.reduce_any(split, axis=0)
    return tf.cast(tf.reduce_sum(tf.cast(split, wide), axis=0), dtype)


def sums_of_halves(collective: Collective, tensors: Sequence[tf.Tensor], *, key: str) -> list[tf.Tensor]:
    """Sum 16-bit tensors in float32 and round once; the tensors travel with 16 bits.

    Each member sums its part and sends it to all: as many bytes as a ring moves.
    """
    sizes = [count_of(tensor) for tensor in tensors]
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    part = reduce_scatter(collective, flat, key=f"{key} parts")
    whole = collective.all_gather(part, key=f"{key} whole")
    return shaped(tf.split(whole, sizes, num=len(tensors)), tensors)


class SideEffect:
    """A side effect that makes functions run operations with unused results, such as sends; else they are dropped."""

    def __init__(self, name: str, device: str) -> None:
        self._name = name
        self._device = device

    def after(self, tensor: tf.Tensor) -> tf.Operation:
        """Return an operation after the tensor that a function runs in any case; None eagerly."""
        if tf.executing_eagerly():
            return None
        # Written is what only the tensor tells: TensorFlow may know its size without it, and makes nothing of an
        # operation without state that others only come after. One element, so that no more leaves its device.
        first = tf.reduce_sum(tf.cast(tf.reshape(tensor, [-1])[:1], tf.float32))
        with tf.device(self._device):
            # A handle of its own, or TensorFlow would put the operations that write there in order.
            place = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=self._name)
            return tf.raw_ops.AssignVariableOp(resource=place, value=first)


def shaped(flat: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return flat tensors in the shapes of others."""
    return [_shaped(f, t) for f, t in zip(flat, like, strict=True)]


def _shaped(flat: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    if like.shape.is_fully_defined():
        return tf.reshape(flat, like.shape)
    return tf.ensure_shape(tf.reshape(flat, tf.shape(like)), like.shape)
