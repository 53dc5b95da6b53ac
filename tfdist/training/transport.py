"""Gradients on their way from a worker to the servers of their variables, in parts where the variables are."""

from typing import Any

import tensorflow as tf

from tfdist.compat import tf_partitioned

# "whole" (a tensor) or "rows" (values and indices), and the number of parts
Kind = tuple[str, int]


def pieces(value: Any, variable: Any, *, add_up: bool, in_parts: bool) -> list[tuple[Any, str]]:
    """Return a gradient, in the parts of its variable if it may be, with the server of each.

    Args:
        value: a tensor or `tf.IndexedSlices`.
        variable: the Keras variable.
        add_up: whether rows of one index may be added up.
        in_parts: whether the gradient may be in parts.
    """
    if add_up and isinstance(value, tf.IndexedSlices):
        indices, inverse = tf.unique(value.indices)
        values = tf.math.unsorted_segment_sum(value.values, inverse, tf.size(indices))
        value = tf.IndexedSlices(values, indices, value.dense_shape)
    own = tf_partitioned.value_of(variable)
    if not in_parts or not isinstance(own, tf_partitioned.PartitionedVariable):
        return [(value, own.device)]
    return [(tf_partitioned.rows_for(own, index, value), device) for index, device in enumerate(own.devices)]


def left_on_server(value: Any, device: str) -> list[tf.Tensor]:
    """Return the tensors of a piece, on its server."""
    tensors = [value.values, value.indices] if isinstance(value, tf.IndexedSlices) else [value]
    with tf.device(device):
        return [tf.identity(tensor) for tensor in tensors]


def tensors_of(kind: Kind | None) -> list[str]:
    """Return what each tensor of a gradient of this kind is."""
    if kind is None:
        return []
    name, parts = kind
    return [name] * (parts * (2 if name == "rows" else 1))


def sum_of(kind: Kind | None, variable: Any, own: list[list[tf.Tensor]]) -> Any:
    """Take the next gradient from the tensors of each part of the batch, and return their sum."""
    if kind is None:
        return None
    name, parts = kind
    shapes = [part.shape for part in tf_partitioned.value_of(variable).parts] if parts > 1 else [variable.shape]
    sums = [_sum_of_piece(name, shape, own) for shape in shapes]
    return sums[0] if parts == 1 else tf_partitioned.PartitionedGradient(sums)


def _sum_of_piece(name: str, shape: Any, own: list[list[tf.Tensor]]) -> Any:
    tensors = [_widened(part.pop(0)) for part in own]
    if name == "whole":
        return tensors[0] if len(tensors) == 1 else tf.add_n(tensors)
    indices = [part.pop(0) for part in own]
    dense_shape = tf.constant(tf.TensorShape(shape).as_list(), tf.int32)
    return tf.IndexedSlices(tf.concat(tensors, axis=0), tf.concat(indices, axis=0), dense_shape)


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    """Return what travelled in 16 bits as float32, so that a sum of it is rounded no more."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.float16, tf.bfloat16) else tensor


def spec_of(tensor: tf.Tensor, name: str) -> tf.TensorSpec:
    """Return the spec of a gradient's tensor; of rows there may be any number."""
    shape = tf.TensorShape([None, *tensor.shape[1:]]) if name == "rows" else tensor.shape
    return tf.TensorSpec(shape, tensor.dtype)
