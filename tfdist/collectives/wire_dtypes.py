"""Conversions of tensors to dtypes that a backend can carry, and back."""

from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from tfdist.errors import UnsupportedError

Restore = Callable[[tf.Tensor], tf.Tensor]

_WORD, _WORD_BYTES = tf.float32, 4


def for_op(tensor: tf.Tensor, reduced: Collection[tf.DType], op: str = "sum") -> tuple[tf.Tensor, Restore]:
    """Return the tensor in a dtype that the backend reduces, and a function that converts the result back.

    bfloat16 is summed in float32 and rounded once. Integers wrap as their own dtype. A sum of bools is True if any is.
    Minima and maxima of floats are those of integers in the same order, because backends differ for NaN and signed
    zeros: any NaN makes the result NaN, with the same bits everywhere, and -0 is less than 0.
    """
    dtype = tensor.dtype
    require_op(dtype, op)
    if dtype.is_floating and op != "sum":
        return _in_order(tensor, op)
    if dtype in reduced:
        return tensor, lambda total: total
    if dtype == tf.bool:
        return tf.cast(tensor, tf.int32), lambda total: total > 0
    if dtype.is_complex:
        part = dtype.real_dtype
        pair = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
        return pair, lambda total: tf.complex(tf.cast(total[0], part), tf.cast(total[1], part))
    if dtype == tf.uint64:  # the same bits, and the same sum modulo 2^64
        return tf.bitcast(tensor, tf.int64), lambda total: tf.bitcast(total, tf.uint64)
    carrier = tf.float32 if dtype.is_floating else tf.int64 if dtype.size >= 4 else tf.int32
    return tf.cast(tensor, carrier), lambda total: tf.cast(total, dtype)


def _in_order(tensor: tf.Tensor, op: str) -> tuple[tf.Tensor, Restore]:
    """Map floats to integers in the same order, with NaN as the last in the direction of an op."""
    dtype = tensor.dtype
    floating, integer = (tf.float64, tf.int64) if dtype == tf.float64 else (tf.float32, tf.int32)
    wide = tf.cast(tensor, floating)
    last = tf.constant(integer.min if op == "min" else integer.max, integer)

    def turned(bits: tf.Tensor) -> tf.Tensor:
        """Reverse the order of negative numbers, whose bits are greater for lesser ones; twice changes nothing."""
        return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.constant(integer.max, integer)), bits)

    def restored(found: tf.Tensor) -> tf.Tensor:
        numbers = tf.bitcast(turned(found), floating)
        return tf.cast(tf.where(found == last, tf.constant(float("nan"), floating), numbers), dtype)

    return tf.where(tf.math.is_nan(wide), last, turned(tf.bitcast(wide, integer))), restored


def require_op(dtype: tf.DType, op: str) -> None:
    """Raise unless values of a dtype can be reduced by this op."""
    ordered = not dtype.is_complex and dtype != tf.uint64
    if not _is_number(dtype) or not (op == "sum" or ordered):
        raise UnsupportedError(
            f"a tensor of dtype {dtype.name} has no {op} over workers; reduce numbers or bools"
            f"{'' if op == 'sum' else ', neither complex nor uint64'}."
        )


def for_copy(tensor: tf.Tensor) -> tuple[tf.Tensor, Restore]:
    """Return the tensor's bits as integers whose sum with zeros is exact, and a function that converts them back."""
    dtype = tensor.dtype
    require_copy(dtype)
    if dtype == tf.bool:
        return tf.cast(tensor, tf.uint8), lambda bits: tf.cast(bits, tf.bool)
    integer = {1: tf.uint8, 4: tf.int32, 8: tf.int64}.get(dtype.size, tf.uint8)
    if dtype == integer:
        return tensor, lambda bits: bits
    return tf.bitcast(tensor, integer), lambda bits: tf.bitcast(bits, dtype)


def in_words(table: tf.Tensor) -> tuple[tf.Tensor, Restore]:
    """Return each row's bits as 32-bit words, and a function back, for backends that carry few dtypes.

    The words have the dtype float32, because TensorFlow keeps int32 of a GPU in the host's memory.
    """
    dtype = table.dtype
    require_copy(dtype)
    shape = [tf.shape(table)[axis] if table.shape[axis] is None else table.shape[axis] for axis in (0, 1)]
    count = shape[1]
    if dtype == tf.bool:
        words, restore = in_words(tf.cast(table, tf.uint8))
        return words, lambda words: tf.cast(restore(words), tf.bool)
    if dtype.size >= _WORD_BYTES:
        per = dtype.size // _WORD_BYTES
        words = table if dtype == _WORD else tf.reshape(tf.bitcast(table, _WORD), [shape[0], count * per])

        def joined(words: tf.Tensor) -> tf.Tensor:
            split = words if per == 1 else tf.reshape(words, [tf.shape(words)[0], count, per])
            return split if dtype == _WORD else tf.bitcast(split, dtype)

        return words, joined
    per = _WORD_BYTES // dtype.size
    padded = tf.pad(tf.bitcast(table, _UNSIGNED[dtype.size]), [[0, 0], [0, -count % per]])
    words = tf.bitcast(tf.reshape(padded, [shape[0], -(-count // per), per]), _WORD)

    def cut(words: tf.Tensor) -> tf.Tensor:
        bits = tf.bitcast(words, _UNSIGNED[dtype.size])
        return tf.bitcast(tf.reshape(bits, [tf.shape(words)[0], -(-count // per) * per])[:, :count], dtype)

    return words, cut


_UNSIGNED = {1: tf.uint8, 2: tf.uint16}


def has_fractions(dtype: tf.DType) -> bool:
    """Return whether numbers of a dtype may have fractions, real or complex: they have means and gradients."""
    return bool(dtype.is_floating or dtype.is_complex)


def copyable(tensor: Any) -> tf.Tensor:
    """Return a tensor whose dtype can be copied."""
    tensor = tf.convert_to_tensor(tensor)
    require_copy(tensor.dtype)
    return tensor


def require_copy(dtype: tf.DType) -> None:
    """Raise unless values of a dtype can travel."""
    if not _is_number(dtype):
        raise UnsupportedError(f"a tensor of dtype {dtype.name} cannot travel between workers; send numbers or bools.")


def _is_number(dtype: tf.DType) -> bool:
    return (dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool) and not dtype.is_quantized
