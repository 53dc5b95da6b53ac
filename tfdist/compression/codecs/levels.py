"""Numbers as whole multiples of a part of their group's scale, drawn so that their mean is the number.

x  as  sign(x) floor(s |x| / scale + u),    0 <= u < 1 drawn,    at most s = 2^(bits - 1) - 1
"""

import tensorflow as tf

from tfdist.compression import packing
from tfdist.compression.codecs import scaled_groups
from tfdist.compression.kernels import kernels, key_and_counter, shaped


def most(bits: int) -> int:
    """Return s, the number of levels beside zero.

    Example:
        >>> [most(bits) for bits in (2, 4, 8)]
        [1, 7, 127]
    """
    return (1 << (bits - 1)) - 1


def words(count: int, bits: int, group: int) -> int:
    """Return the words of the levels of a row of so many numbers, and of its scales."""
    return count * bits // packing.WORD_BITS + count // group


def encode(rows: tf.Tensor, scales: tf.Tensor, seed: tf.Tensor, *, bits: int, group: int) -> tf.Tensor:
    """Return the levels, plus s, and then the scales, as words. What is no number, or infinite, has level 0."""
    ops = kernels()
    if ops is not None:
        packed = ops.tfdist_to_levels(rows, scales, *key_and_counter(seed), group=group, bits=bits)
        packed = shaped(packed, [rows.shape[0], rows.shape[1] * bits // packing.WORD_BITS])
    else:
        packed = packing.packed(_levels(rows, scales, seed, most(bits), group) + most(bits), bits)
    return tf.concat([packed, packing.as_words(scales)], axis=1)


def decode(encoded: tf.Tensor, count: int, *, bits: int, group: int) -> tf.Tensor:
    """Return the numbers; all of a group whose scale is not finite are not finite, or zero."""
    packed, scales = tf.split(encoded, [count * bits // packing.WORD_BITS, count // group], axis=1)
    scales = packing.as_numbers(scales)
    ops = kernels()
    if ops is not None:
        rows = ops.tfdist_from_levels(packed, scales, group=group, bits=bits)
        return shaped(rows, [encoded.shape[0], count])
    whole = scaled_groups.apart(packing.unpacked(packed, bits) - most(bits), group)
    return scaled_groups.together(tf.cast(whole, tf.float32) * (scales * (1 / most(bits)))[..., tf.newaxis])


def _levels(rows: tf.Tensor, scales: tf.Tensor, seed: tf.Tensor, most: int, group: int) -> tf.Tensor:
    drawn = scaled_groups.apart(tf.random.stateless_uniform(tf.shape(rows), seed, alg="philox"), group)
    per_number = tf.math.divide_no_nan(float(most), scales)[..., tf.newaxis]
    level = tf.minimum(tf.floor(tf.abs(scaled_groups.apart(rows, group)) * per_number + drawn), float(most))
    whole = scaled_groups.together(tf.cast(tf.where(tf.math.is_finite(level), level, 0.0), tf.int32))
    return tf.where(packing.is_negative(rows), -whole, whole)
