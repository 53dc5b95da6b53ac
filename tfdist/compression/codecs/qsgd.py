"""QSGD: a few levels of the norm of each group, drawn so that their mean is the number."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy
from tfdist.compression.codecs import levels, scaled_groups


@dataclass(frozen=True, kw_only=True)
class QSGD(scaled_groups.GroupCodec):
    """The Euclidean norm of each group of d numbers, and for each number one of s levels of it with a sign.

        Q(x) = |v| sign(x) (l + b) / s,    l = floor(s |x| / |v|),    b = 1 with probability s |x| / |v| - l

    with s = 2^(bits - 1) - 1. Unbiased, with E|Q(v) - v|^2 <= min(d / s^2, sqrt(d) / s) |v|^2.

    Args:
        bits: of a number with its sign: 2, 4 or 8.
        group: d, numbers with a norm in common; a multiple of 32.

    Example:
        >>> QSGD(bits=4).levels
        7

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka and M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", 2017. Levels have a fixed number of bits here, and no Elias code.
    """

    name: ClassVar[str] = "qsgd"
    accuracy: ClassVar[Accuracy] = "unbiased"

    bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("bits", self.bits, (2, 4, 8))

    @property
    def levels(self) -> int:
        """s, the number of levels beside zero."""
        return levels.most(self.bits)

    def row_words(self, count: int) -> int:
        """Return the words of the levels, and one for the norm of each group."""
        return levels.words(count, self.bits, self.group)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the levels, plus s, and then the norms."""
        norms = tf.sqrt(scaled_groups.sums(rows, self.group, "squares"))
        return levels.encode(rows, norms, seed, bits=self.bits, group=self.group)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers; all of a group whose norm is not finite are not finite, or zero."""
        return levels.decode(words, count, bits=self.bits, group=self.group)
