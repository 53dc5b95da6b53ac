"""Tensors in dtypes that an engine can carry, and back."""

from collections.abc import Callable, Collection

import tensorflow as tf

from tfdist.errors import UnsupportedError

Restore = Callable[[tf.Tensor], tf.Tensor]


def for_sum(tensor: tf.Tensor, summed: Collection[tf.DType]) -> tuple[tf.Tensor, Restore]:
    """Return the tensor as a dtype that the engine sums, and the way back from the sum.

    bfloat16 is summed in float32 and rounded once. Integers wrap as their own dtype does. A sum of bools is True
    where any is.

    Args:
        tensor: numbers or bools.
        summed: dtypes that the engine sums; float32, int32 and int64 at least.
    Raises:
        UnsupportedError: text, or another dtype that has no sum.

    Example:
        >>> carried, restore = for_sum(tf.constant([True, False]), [tf.float32, tf.int32, tf.int64])
        >>> restore(carried + carried).numpy().tolist()
        [True, False]
    """
    dtype = tensor.dtype
    if dtype in summed:
        return tensor, lambda total: total
    if dtype == tf.bool:
        return tf.cast(tensor, tf.int32), lambda total: total > 0
    if dtype.is_complex:
        part = dtype.real_dtype
        pair = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
        return pair, lambda total: tf.complex(tf.cast(total[0], part), tf.cast(total[1], part))
    if dtype == tf.uint64:  # the same bits, and the same sum modulo 2^64
        return tf.bitcast(tensor, tf.int64), lambda total: tf.bitcast(total, tf.uint64)
    if dtype.is_floating or dtype.is_integer:
        carrier = tf.float32 if dtype.is_floating else tf.int64 if dtype.size >= 4 else tf.int32
        return tf.cast(tensor, carrier), lambda total: tf.cast(total, dtype)
    raise UnsupportedError(f"a tensor of dtype {dtype.name} has no sum over workers; reduce numbers or bools.")


def for_copy(tensor: tf.Tensor) -> tuple[tf.Tensor, Restore]:
    """Return the tensor's bits as integers whose sum with zeros is exact, and the way back.

    Raises:
        UnsupportedError: text.

    Example:
        >>> carried, restore = for_copy(tf.constant([-0.0, 1.5]))
        >>> restore(carried + 0).numpy().tolist()
        [-0.0, 1.5]
    """
    dtype = tensor.dtype
    if dtype == tf.bool:
        return tf.cast(tensor, tf.uint8), lambda bits: tf.cast(bits, tf.bool)
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex) or dtype.is_quantized:
        raise UnsupportedError(f"a tensor of dtype {dtype.name} cannot travel between workers; send numbers or bools.")
    integer = {1: tf.uint8, 4: tf.int32, 8: tf.int64}.get(dtype.size, tf.uint8)
    if dtype == integer:
        return tensor, lambda bits: bits
    return tf.bitcast(tensor, integer), lambda bits: tf.bitcast(bits, dtype)
