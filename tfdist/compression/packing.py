"""Packing of small integers and floats into the 32-bit words that travel; every backend carries int32."""

import tensorflow as tf

WORD_BITS = 32


def packed(values: tf.Tensor, bits: int) -> tf.Tensor:
    """Return small integers side by side in words, the first one in the lowest bits.

    Example:
        >>> packed(tf.constant([[1, 2, 3, 0]]), 8).numpy().tolist()
        [[197121]]
    """
    each = WORD_BITS // bits
    shifts = tf.range(0, WORD_BITS, bits)
    apart = tf.reshape(values, [values.shape[0], -1, each])
    return tf.reduce_sum(tf.bitwise.left_shift(apart, shifts), axis=-1)  # no two have a bit in common


def unpacked(words: tf.Tensor, bits: int) -> tf.Tensor:
    """Return the integers packed in words, int32, shape (rows, words * 32 / bits).

    Example:
        >>> unpacked(tf.constant([[197121]]), 8).numpy().tolist()
        [[1, 2, 3, 0]]
    """
    shifts = tf.range(0, WORD_BITS, bits)
    apart = tf.bitwise.right_shift(words[..., tf.newaxis], shifts)
    return tf.reshape(tf.bitwise.bitwise_and(apart, (1 << bits) - 1), [words.shape[0], -1])


def is_negative(numbers: tf.Tensor) -> tf.Tensor:
    """Return whether each float32 number has its sign bit set, also for -0.0 and NaNs.

    Example:
        >>> is_negative(tf.constant([-1.0, -0.0, 0.0])).numpy().tolist()
        [True, True, False]
    """
    return as_words(numbers) < 0


def as_words(numbers: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(numbers, tf.int32)


def as_numbers(words: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(words, tf.float32)
