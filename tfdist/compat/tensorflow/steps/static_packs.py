"""TensorFlow's packs of values that are summed together, for tensors with known shapes.

TensorFlow computes the shape and the size of each tensor of a pack while the step runs, with seven operations per
tensor; with known shapes four are enough. This module passes a pack as one tensor, with the same elements in the same
order. So its sum is equal to the bit.

Private names, read in TensorFlow 2.21.0: `cross_device_utils.group_by_size`, with which TensorFlow makes its packs.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

from tfdist.compat.tensorflow.steps.replica_contexts import owned


def can_pack(values: list[Any]) -> bool:
    """Return True if values are dense, have one dtype and known shapes, and are in a graph."""
    if tf.executing_eagerly() or len({one.dtype for one in values}) != 1:
        return False
    return all(isinstance(one, tf.Tensor) and one.shape.is_fully_defined() for one in values)


def sums(reduce: Callable[[list[Any], Any], list[Any]], values: list[tf.Tensor], options: Any) -> list[tf.Tensor]:
    """Return the sums of values that `can_pack` accepts; ``reduce`` takes packs from the last to the first."""
    packs = cross_device_utils.group_by_size(values, options.bytes_per_pack)
    sent = [owned(pack[0]) if len(pack) == 1 else _joined(pack) for pack in packs]
    each_alone = options.merge(tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1))
    totals = reduce(sent[::-1], each_alone)[::-1]
    found = [_apart(total, pack) for total, pack in zip(totals, packs, strict=True)]
    return [one for pack in found for one in pack]


def _joined(pack: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat([one if one.shape.rank == 1 else tf.reshape(one, [-1]) for one in pack], axis=0)


def _apart(total: tf.Tensor, pack: list[tf.Tensor]) -> list[tf.Tensor]:
    if len(pack) == 1:
        return [total]
    parts = tf.split(total, [one.shape.num_elements() for one in pack])
    return [part if one.shape.rank == 1 else tf.reshape(part, one.shape) for part, one in zip(parts, pack, strict=True)]
