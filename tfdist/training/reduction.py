"""Sums over replicas, from inside a replica."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.training import agreement

_local = threading.local()


@contextlib.contextmanager
def exchanged(exchange: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    """Let ``exchange`` take the sums over replicas that are asked for inside, in this thread.

    Example:
        >>> with exchanged(lambda tensors: [2 * tensor for tensor in tensors]):
        ...     sum_over_replicas([3.0])
        [6.0]
    """
    _local.exchange = exchange
    try:
        yield
    finally:
        del _local.exchange


def sum_over_replicas(tensors: list[Any], *, labels: Sequence[str] = (), rows_matter: bool = True) -> list[Any]:
    """Return the sums over all replicas of tensors that every replica of the strategy holds.

    To be called in a replica context, by all replicas, in the same order. Tensors of one dtype travel
    together, in packs of a few MiB.

    Args:
        tensors: tensors of equal shape and dtype on every replica, or `tf.IndexedSlices`, whose rows are gathered.
        labels: what the tensors are, for messages.
        rows_matter: whether rows of `tf.IndexedSlices` must stay apart, see `agreement.reducing`.
    Returns:
        The sums, in the order of ``tensors``, equal bit for bit on every replica.
    """
    exchange = getattr(_local, "exchange", None)
    if exchange is not None:
        return list(exchange(tensors))
    replica_context = tf.distribute.get_replica_context()
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.dtype].append(index)
    sums: list[Any] = [None] * len(tensors)
    for indices in groups.values():
        names = [labels[index] for index in indices] if labels else [""] * len(indices)
        with agreement.reducing(names, rows_matter=rows_matter):
            reduced = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, [tensors[index] for index in indices])
        for index, value in zip(indices, reduced, strict=True):
            sums[index] = value
    return sums


def weighted(tensor: Any, share: tf.Tensor) -> Any:
    """Return ``tensor * share``, and exactly zero where the share is zero: a replica without examples may hold NaN."""
    return mapped(lambda value: tf.math.multiply_no_nan(value, tf.cast(share, value.dtype)), tensor)


def travelling(gradient: Any, wire_dtype: str | None) -> Any:
    """Return a gradient as it leaves: in ``wire_dtype`` if that is smaller than its own."""
    if wire_dtype is None or not gradient.dtype.is_floating or gradient.dtype.size <= 2:
        return gradient
    return mapped(lambda value: tf.cast(value, wire_dtype), gradient)


def mapped(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    """Return a function of a gradient's values; of `tf.IndexedSlices`, of the values of its rows; None of None."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else function(gradient)
