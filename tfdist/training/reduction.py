"""Sums over replicas, from inside a replica."""

from collections import defaultdict
from typing import Any

import tensorflow as tf

# TensorFlow concatenates all tensors of a reduction into one buffer by default, which then waits for the last of them and
# is slow to allocate. Packs of 4 MiB were 1.4 to 2.6 times faster on the gradients of ResNet-50.
BYTES_PER_PACK = 4 << 20


def sum_over_replicas(tensors: list[Any]) -> list[Any]:
    """Return the sums over all replicas of tensors that every replica of the strategy holds.

    To be called in a replica context, by all replicas, in the same order. Tensors of one dtype travel together in packs.

    Args:
        tensors: tensors of equal shape and dtype on every replica, or `tf.IndexedSlices`, whose rows are gathered.
    Returns:
        The sums, in the order of ``tensors``, equal bit for bit on every replica.
    """
    replica_context = tf.distribute.get_replica_context()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BYTES_PER_PACK)
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.dtype].append(index)
    sums: list[Any] = [None] * len(tensors)
    for indices in groups.values():
        reduced = replica_context.all_reduce(
            tf.distribute.ReduceOp.SUM, [tensors[index] for index in indices], options=options
        )
        for index, value in zip(indices, reduced, strict=True):
            sums[index] = value
    return sums


def weighted(tensor: Any, share: tf.Tensor) -> Any:
    """Return ``tensor * share``, and exactly zero where the share is zero: a replica without examples may hold NaN."""
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(weighted(tensor.values, share), tensor.indices, tensor.dense_shape)
    return tf.math.multiply_no_nan(tensor, tf.cast(share, tensor.dtype))
