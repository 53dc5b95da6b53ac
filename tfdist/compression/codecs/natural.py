"""Natural compression: the nearest powers of two, drawn so that their mean is the number."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist.compression import packing
from tfdist.compression.codec import Accuracy, RowCodec
from tfdist.compression.kernels import kernels, key_and_counter, shaped

_MANTISSA = 23
_LARGEST = 254  # of the exponents of finite numbers


@dataclass(frozen=True, kw_only=True)
class Natural(RowCodec):
    """Sign and exponent of each number, 9 bits.

    For 2^a <= |x| < 2^(a+1) it is sign(x) 2^(a+1) with the probability |x| / 2^a - 1, and else sign(x) 2^a: unbiased,
    with E[C(x)^2] <= 9/8 x^2. Adding 23 random bits to the bits of a float32 and clearing the last 23 does that.
    Numbers from 2^127 on are 2^127.

    Example:
        >>> Natural().row_words(32)
        9

    Source: S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini and P. Richtarik, "Natural Compression for
    Distributed Deep Learning", 2019. There sums are made by switches, or compressed anew at every hop of a ring.
    """

    name: ClassVar[str] = "natural"
    accuracy: ClassVar[Accuracy] = "unbiased"

    @property
    def row_multiple(self) -> int:
        """The signs of 32 numbers fill a word."""
        return packing.WORD_BITS

    def row_words(self, count: int) -> int:
        """Return the words of 8 bits for an exponent and 1 for a sign."""
        return count // 4 + count // packing.WORD_BITS

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the exponents, four in a word, and then the signs."""
        ops = kernels()
        if ops is not None:
            words = ops.tfdist_to_powers(rows, *key_and_counter(seed))
            return shaped(words, [rows.shape[0], self.row_words(rows.shape[1])])
        size = tf.bitwise.bitwise_and(packing.as_words(rows), 0x7FFFFFFF)
        drawn = tf.random.stateless_uniform(tf.shape(rows), seed, 0, 1 << _MANTISSA, tf.int32, alg="philox")
        rounded = tf.bitwise.right_shift(tf.where(size < _LARGEST << _MANTISSA, size + drawn, size), _MANTISSA)
        signs = packing.packed(tf.cast(packing.is_negative(rows), tf.int32), 1)
        return tf.concat([packing.packed(rounded, 8), signs], axis=1)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the powers of two."""
        ops = kernels()
        if ops is not None:
            return shaped(ops.tfdist_from_powers(words), [words.shape[0], count])
        exponents, signs = tf.split(words, [count // 4, count // packing.WORD_BITS], axis=1)
        size = tf.bitwise.left_shift(packing.unpacked(exponents, 8), _MANTISSA)
        sign = tf.bitwise.left_shift(packing.unpacked(signs, 1), packing.WORD_BITS - 1)
        return packing.as_numbers(tf.bitwise.bitwise_or(size, sign))
