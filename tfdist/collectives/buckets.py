"""Which tensors are reduced together: in buckets, from the last tensor to the first."""

from collections.abc import Mapping

import tensorflow as tf


def in_buckets(tensors: Mapping[int, tf.Tensor], bucket_bytes: int) -> list[list[int]]:
    """Return buckets of indices, of one dtype each, from the last tensor to the first.

    A backward pass makes gradients in this order, so the first bucket can leave while the pass goes on.

    Args:
        tensors: by index.
        bucket_bytes: how large a bucket is, about; a larger tensor is a bucket of its own.

    Example:
        >>> in_buckets({0: tf.zeros([4]), 1: tf.zeros([2]), 2: tf.zeros([1], tf.int32), 3: tf.zeros([2])}, 16)
        [[3, 1], [2], [0]]
    """
    buckets: list[list[int]] = []
    filling: dict[tf.DType, tuple[list[int], int]] = {}
    for index in sorted(tensors, reverse=True):
        tensor = tensors[index]
        size = (tensor.shape.num_elements() or 1) * tensor.dtype.size
        bucket, held = filling.get(tensor.dtype, ([], 0))
        if not bucket or held + size > bucket_bytes:
            bucket, held = [], 0
            buckets.append(bucket)
        bucket.append(index)
        filling[tensor.dtype] = (bucket, held + size)
    return buckets
