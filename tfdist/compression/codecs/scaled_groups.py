"""Codecs that cut rows into groups of numbers with a common scale."""

from dataclasses import dataclass
from typing import Literal

import tensorflow as tf

from tfdist import validation
from tfdist.compression import packing
from tfdist.compression.codec import RowCodec
from tfdist.compression.kernels import kernels, shaped
from tfdist.errors import ConfigError

#: the number of values that share a scale, by default
SIZE = 512

#: the sums over the numbers of a group, in the order of kernels.h
Summed = Literal["squares", "sizes", "negatives", "positives"]
_SUMMED = ("squares", "sizes", "negatives", "positives")


@dataclass(frozen=True, kw_only=True)
class GroupCodec(RowCodec):
    """A codec whose rows are made of whole groups.

    Example:
        >>> GroupCodec(group=64).row_multiple
        64
    """

    group: int = SIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.integer("group", self.group, minimum=packing.WORD_BITS)
        if self.group % packing.WORD_BITS:
            raise ConfigError(
                f"group is {self.group}; it must be a multiple of {packing.WORD_BITS}, such as {SIZE}.",
                name="group",
                received=self.group,
            )

    @property
    def row_multiple(self) -> int:
        return self.group


def apart(rows: tf.Tensor, size: int) -> tf.Tensor:
    return tf.reshape(rows, [rows.shape[0], -1, size])


def together(groups: tf.Tensor) -> tf.Tensor:
    return tf.reshape(groups, [groups.shape[0], -1])


def sums(rows: tf.Tensor, size: int, of: Summed) -> tf.Tensor:
    """Return a sum for each group, shape (rows, groups): of x^2, of |x|, of the negative x, or of all others.

    The order of the sum does not depend on the machine; its error is that of log2(size) roundings.

    Example:
        >>> sums(tf.ones([1, 64]), 32, "squares").numpy().tolist()
        [[32.0, 32.0]]
    """
    ops = kernels()
    if ops is not None:
        return shaped(ops.tfdist_group_sums(rows, group=size, of=_SUMMED.index(of)), _scales(rows, size))
    return _added_up(apart(_taken(rows, of), size))


def largest(rows: tf.Tensor, size: int) -> tf.Tensor:
    """Return the largest |x| of each group, shape (rows, groups); NaN if the group has one.

    Example:
        >>> largest(tf.range(-32.0, 32.0)[tf.newaxis], 32).numpy().tolist()
        [[32.0, 31.0]]
    """
    ops = kernels()
    if ops is not None:
        return shaped(ops.tfdist_group_largest(rows, group=size), _scales(rows, size))
    # the bits of floats without a sign, read as integers, have the same order, with NaN last
    return packing.as_numbers(tf.reduce_max(packing.as_words(tf.abs(apart(rows, size))), axis=2))


def _scales(rows: tf.Tensor, size: int) -> list[int]:
    return [rows.shape[0], rows.shape[1] // size]


def _taken(rows: tf.Tensor, of: Summed) -> tf.Tensor:
    if of == "squares":
        return tf.square(rows)
    if of == "sizes":
        return tf.abs(rows)
    return tf.where(packing.is_negative(rows) == (of == "negatives"), rows, 0.0)


def _added_up(groups: tf.Tensor) -> tf.Tensor:
    """Return sums over the last axis, which is halved until one number is left."""
    while groups.shape[-1] > 1:
        size = groups.shape[-1]
        half = size // 2
        halves = groups[..., :half] + groups[..., half : 2 * half]
        groups = tf.concat([halves, groups[..., 2 * half :]], axis=-1) if size % 2 else halves
    return groups[..., 0]
