"""Sums over replicas, from inside a replica."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.collective import by_dtype, with_rows
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_contexts import ValueOptions


def sum_over_replicas(
    tensors: list[Any],
    *,
    labels: Sequence[str] = (),
    keep_duplicate_indices: bool = True,
    is_differentiable: bool = True,
) -> list[Any]:
    """Return the sums over all replicas; called in a replica context, by all replicas in the same order.

    Tensors of one dtype travel together, in buckets that fill in the order given.
    """
    is_alone = tf_strategies.replicas_here() == 1
    if is_alone and not any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):  # whose rows are added up
        return list(tensors)
    reduce = tf_strategies.all_reduce_of(tf.distribute.get_replica_context(), is_differentiable=is_differentiable)
    names = list(labels) or [""] * len(tensors)
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.dtype].append(index)
    sums: list[Any] = [None] * len(tensors)
    for indices in groups.values():
        options = ValueOptions([names[index] for index in indices], keep_duplicate_indices=keep_duplicate_indices)
        reduced = reduce(tf.distribute.ReduceOp.SUM, [tensors[i] for i in indices], options)
        for index, value in zip(indices, reduced, strict=True):
            sums[index] = value
    return sums


def gathered_from_replicas(tensors: Sequence[tf.Tensor], label: str) -> list[tf.Tensor]:
    """Return each tensor of all replicas, shape (replicas, ...); tensors of one dtype travel together."""
    replicas = tf_strategies.replicas_here()
    if replicas == 1:
        return [tensor[tf.newaxis] for tensor in tensors]

    def gathered(_: int, same: list[tf.Tensor]) -> list[tf.Tensor]:
        flat = tf.concat([tf.reshape(tensor, [1, -1]) for tensor in same], axis=1)
        rows = tf.distribute.get_strategy().extended.all_gather_in_replica(flat, f"{label} {flat.dtype.name}")
        parts = tf.split(rows, [tf.size(tensor) for tensor in same], axis=1, num=len(same))
        return [tf.reshape(part, with_rows([replicas], one[tf.newaxis])) for one, part in zip(same, parts, strict=True)]

    return by_dtype(tensors, gathered)


class Replicas:
    """The replicas of the strategy in whose replica context this is used; a `current_step.Group`."""

    @property
    def size(self) -> int:
        return tf_strategies.replicas_here()

    @property
    def index(self) -> int:
        return tf_strategies.index_here()

    def rows(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all replicas, in the replicas' order; replicas may have different numbers of rows."""
        return tf.distribute.get_strategy().extended.all_gather_in_replica(tensor, label)

    def total(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the sum over replicas of rows, whose number may differ in the next step."""
        return tf.distribute.get_strategy().extended.sum_in_replica(tensor, label)


def weighted(tensor: Any, share: tf.Tensor) -> Any:
    """Return ``tensor * share``, and exactly zero if the share is zero: a replica without examples may hold NaN."""
    return mapped(lambda value: tf.math.multiply_no_nan(value, tf.cast(share, value.dtype)), tensor)


def mapped(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    """Return a function of a gradient's values, or of the values of `tf.IndexedSlices`; None for None."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else function(gradient)


def are_finite(gradients: list[Any]) -> tf.Tensor:
    """Return whether all values of all gradients are finite, a bool scalar.

    Example:
        >>> bool(are_finite([tf.constant([1.0]), None, tf.constant([float("inf")])]))
        False
    """
    values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    found = [tf.reduce_all(tf.math.is_finite(value)) for value in values if value is not None]
    return tf.reduce_all(tf.stack(found)) if found else tf.constant(True)
