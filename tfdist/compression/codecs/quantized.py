"""Unbiased codecs that round each number by a random draw: QSGD, TernGrad and natural compression.

QSGD and TernGrad send whole multiples of a fraction of their group's scale, drawn so that their mean is the number:

x  as  sign(x) floor(s |x| / scale + u),    0 <= u < 1 drawn,    at most s = 2^(bits - 1) - 1
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import tensorflow as tf

from tfdist import validation
from tfdist.compression import packing
from tfdist.compression.codec import Accuracy, RowCodec
from tfdist.compression.codecs import scaled_groups
from tfdist.compression.kernels import kernels, key_and_counter, shaped


def most(bits: int) -> int:
    """Return s, the number of levels besides zero.

    Example:
        >>> [most(bits) for bits in (2, 4, 8)]
        [1, 7, 127]
    """
    return (1 << (bits - 1)) - 1


def level_words(count: int, bits: int, group: int) -> int:
    """Return the count of words for a row's levels and scales."""
    return count * bits // packing.WORD_BITS + count // group


def to_levels(rows: tf.Tensor, scales: tf.Tensor, seed: tf.Tensor, *, bits: int, group: int) -> tf.Tensor:
    """Return the levels, plus s, and then the scales, as words. NaN and infinity have level 0."""
    ops = kernels()
    if ops is not None:
        packed = ops.tfdist_to_levels(rows, scales, *key_and_counter(seed), group=group, bits=bits)
        packed = shaped(packed, [rows.shape[0], rows.shape[1] * bits // packing.WORD_BITS])
    else:
        packed = packing.packed(_levels(rows, scales, seed, most(bits), group) + most(bits), bits)
    return tf.concat([packed, packing.as_words(scales)], axis=1)


def from_levels(encoded: tf.Tensor, count: int, *, bits: int, group: int) -> tf.Tensor:
    """Return the numbers. In a group whose scale is not finite, each number is not finite or zero."""
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


@dataclass(frozen=True, kw_only=True)
class QSGD(scaled_groups.GroupCodec):
    """Quantization to a norm of each group of d numbers, and one of s levels with a sign for each number.

        Q(x) = |v| sign(x) (l + b) / s,    l = floor(s |x| / |v|),    b = 1 with probability s |x| / |v| - l

    with s = 2^(bits - 1) - 1. Unbiased, with E|Q(v) - v|^2 <= min(d / s^2, sqrt(d) / s) |v|^2. With the largest |x| of
    a group in place of its Euclidean norm |v|, the error of a number is less than that divided by s.

    Args:
        bits: the bits of a number with its sign: 2, 4 or 8.
        norm: "euclidean", or "largest", whose levels are finer: no number of the group is larger.
        group: d, the count of numbers that share a norm; a multiple of 32.

    Example:
        >>> QSGD(bits=4).levels
        7

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka and M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", 2017. Levels have a fixed number of bits here, and no Elias code.
    """

    name: ClassVar[str] = "qsgd"
    accuracy: ClassVar[Accuracy] = "unbiased"

    bits: int = 8
    norm: Literal["euclidean", "largest"] = "euclidean"

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("bits", self.bits, (2, 4, 8))
        validation.one_of("norm", self.norm, ("euclidean", "largest"))

    @property
    def levels(self) -> int:
        """The number s of levels besides zero."""
        return most(self.bits)

    def row_words(self, count: int) -> int:
        """Return the count of words for the levels, and one word for the norm of each group."""
        return level_words(count, self.bits, self.group)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the levels, plus s, and then the norms, as words."""
        if self.norm == "largest":
            norms = scaled_groups.largest(rows, self.group)
        else:
            norms = tf.sqrt(scaled_groups.sums(rows, self.group, "squares"))
        return to_levels(rows, norms, seed, bits=self.bits, group=self.group)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers. In a group whose norm is not finite, each number is not finite or zero."""
        return from_levels(words, count, bits=self.bits, group=self.group)


_BITS = 2


@dataclass(frozen=True, kw_only=True)
class TernGrad(scaled_groups.GroupCodec):
    """Two bits for each number: s sign(x) with probability |x| / s, else zero, where s is the largest |x| of a group.

    The codec is unbiased unless numbers are clipped. Clipping cuts numbers beyond ``clip`` standard deviations of their
    group, which makes s, and with it the noise, smaller.

    Args:
        clip: the largest magnitude, in standard deviations about zero; None: no clipping.
        group: the count of numbers that share an s; a multiple of 32.

    Example:
        >>> TernGrad().row_words(512)
        33

    Source: W. Wen, C. Xu, F. Yan, C. Wu, Y. Wang, Y. Chen and H. Li, "TernGrad: Ternary Gradients to Reduce
    Communication in Distributed Deep Learning", 2017. There s belongs to a layer, the same for all workers, and
    clipping (2.5) is the rule.
    """

    name: ClassVar[str] = "terngrad"
    accuracy: ClassVar[Accuracy] = "unbiased"

    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            validation.number("clip", self.clip, above=0)

    def row_words(self, count: int) -> int:
        """Return the count of words for two bits per number, and one word for the largest |x| of each group."""
        return level_words(count, _BITS, self.group)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return -1, 0 or 1, plus one, for each number, and then the largest |x| of each group."""
        largest = scaled_groups.largest(rows, self.group)
        if self.clip is not None:
            deviation = tf.sqrt(scaled_groups.sums(rows, self.group, "squares") * (1 / self.group))
            largest = tf.minimum(largest, self.clip * deviation)  # larger numbers have level 1 too
        return to_levels(rows, largest, seed, bits=_BITS, group=self.group)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return for each number minus the largest |x| of its group, zero, or the largest |x|."""
        return from_levels(words, count, bits=_BITS, group=self.group)


_MANTISSA = 23
_LARGEST = 254  # of the exponents of finite numbers


@dataclass(frozen=True, kw_only=True)
class Natural(RowCodec):
    """The sign and the exponent of each number, in 9 bits.

    For 2^a <= |x| < 2^(a+1) it is sign(x) 2^(a+1) with the probability |x| / 2^a - 1, and else sign(x) 2^a: unbiased,
    with E[C(x)^2] <= 9/8 x^2. Adding 23 random bits to the bits of a float32 and clearing the last 23 gives this draw.
    Numbers from 2^127 on become 2^127.

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
        """The number of signs that fill a word: 32."""
        return packing.WORD_BITS

    def row_words(self, count: int) -> int:
        """Return the count of words for an 8-bit exponent and a sign bit per number."""
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
        """Return the signed powers of two."""
        ops = kernels()
        if ops is not None:
            return shaped(ops.tfdist_from_powers(words), [words.shape[0], count])
        exponents, signs = tf.split(words, [count // 4, count // packing.WORD_BITS], axis=1)
        size = tf.bitwise.left_shift(packing.unpacked(exponents, 8), _MANTISSA)
        sign = tf.bitwise.left_shift(packing.unpacked(signs, 1), packing.WORD_BITS - 1)
        return packing.as_numbers(tf.bitwise.bitwise_or(size, sign))
