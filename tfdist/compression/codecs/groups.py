"""Rows in groups of numbers that have a scale of their own."""

import tensorflow as tf

from tfdist import validation
from tfdist.compression import packing
from tfdist.errors import ConfigError

#: how many numbers have a scale in common, by default
SIZE = 512


def apart(rows: tf.Tensor, size: int) -> tf.Tensor:
    """Return rows as groups, shape (rows, groups, size)."""
    return tf.reshape(rows, [rows.shape[0], -1, size])


def together(groups: tf.Tensor) -> tf.Tensor:
    """Return groups as rows, shape (rows, groups * size)."""
    return tf.reshape(groups, [groups.shape[0], -1])


def require(name: str, size: int) -> int:
    """Return how many numbers a group has.

    Args:
        name: of the argument.
        size: its value.
    Raises:
        ConfigError: it is not a multiple of 32, so that words would not be full.
    """
    validation.integer(name, size, minimum=packing.WORD_BITS)
    if size % packing.WORD_BITS:
        raise ConfigError(f"{name} is {size}; it must be a multiple of {packing.WORD_BITS}, such as {SIZE}.")
    return size
