"""A collective as a strategy's step uses it: keys from what was reduced before, buckets, and rows of tables."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import keys, wire_dtypes
from tfdist.collectives.buckets import in_buckets
from tfdist.collectives.collective import Collective
from tfdist.monitor.recording import graph_stamps

# What the collectives of Horovod and of TensorFlow reduce alike.
_REDUCED_BY_ALL = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

# A table of embeddings up to this size is summed whole, with the dense gradients; for a larger one members ask each
# other first how many rows they have.
_SMALL_TABLE_BYTES = 1 << 20


class TracedCollective:
    """Operations of a collective under keys that follow from the function that is being traced; see `keys`."""

    def __init__(
        self, collective: Collective, *, bucket_bytes: int, replica: int = 0, names_shapes: bool = True
    ) -> None:
        self.collective = collective
        self.size = collective.size
        self.rank = collective.rank
        self.bucket_bytes = bucket_bytes
        self._replica = replica
        self._names_shapes = names_shapes

    def all_reduce(
        self, values: Sequence[Any], labels: Sequence[str] = (), *, keep_duplicate_indices: bool = True
    ) -> list[Any]:
        """Return the sums over members, in the order given; a bucket waits for its own tensors only."""
        if self.size == 1:
            return list(values)
        names = list(labels) or [""] * len(values)
        results: list[Any] = [None] * len(values)
        dense: dict[int, tf.Tensor] = {}
        for index, value in enumerate(values):
            value = self.carried(value, keep_duplicate_indices=keep_duplicate_indices)
            if isinstance(value, tf.IndexedSlices):
                results[index] = self._sum_of_slices(value, names[index], keep_duplicate_indices)
            else:
                dense[index] = value
        for bucket in in_buckets(dense, self.bucket_bytes):
            key = self._key(*[self._described("sum", dense[index], names[index]) for index in bucket])
            tensors = [dense[index] for index in bucket]
            totals = graph_stamps.reduction(tensors, functools.partial(self.collective.all_reduce, tensors, key=key))
            for index, total in zip(bucket, totals, strict=True):
                results[index] = total
        return results

    def carried(self, value: Any, *, keep_duplicate_indices: bool) -> Any:
        """Return a value as `all_reduce` carries it: of rows a small table as a whole, unless the rows matter."""
        is_rows = isinstance(value, tf.IndexedSlices) and (keep_duplicate_indices or not _is_small_table(value))
        return value if is_rows else tf.convert_to_tensor(value)

    def all_gather(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return the rows of all members in their order; the numbers of rows may differ, all else may not."""
        return self._moved("all_gather", tensor, label, tf.TensorShape([None]).concatenate(tensor.shape[1:]))

    def reduce_scatter(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return this member's part of the sum of the rows, see `Collective.reduce_scatter`."""
        return self._moved("reduce_scatter", tensor, label)

    def all_to_all(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return this member's part of every member's rows, see `Collective.all_to_all`."""
        return self._moved("all_to_all", tensor, label)

    def broadcast(self, tensor: tf.Tensor, label: str = "", *, root: int = 0) -> tf.Tensor:
        """Return one member's value, bit for bit."""
        return self._moved("broadcast", tensor, label, root=root)

    def in_common_dtype(self, tensor: tf.Tensor) -> tuple[tf.Tensor, wire_dtypes.Restore]:
        """Return the tensor in a dtype that TensorFlow's collectives sum as well as this one, and the way back."""
        return wire_dtypes.for_op(tensor, _REDUCED_BY_ALL)

    def _moved(
        self, operation: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None, **options: int
    ) -> tf.Tensor:
        if self.size == 1:
            return tensor
        key = self._key(self._described(operation, tensor, label, shape))
        return getattr(self.collective, operation)(tensor, key=key, **options)

    def _described(self, kind: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None) -> str:
        return keys.described(kind, tensor, label, shape if self._names_shapes else tf.TensorShape(None))

    def _key(self, *entries: str) -> str:
        return keys.next_key(entries, self._replica)

    def _sum_of_slices(self, slices: tf.IndexedSlices, label: str, keep_duplicate_indices: bool) -> tf.IndexedSlices:
        def gathered() -> tuple[tf.Tensor, tf.Tensor]:
            return (
                self.all_gather(slices.values, f"{label} values"),
                self.all_gather(slices.indices, f"{label} indices"),
            )

        def whole() -> tuple[tf.Tensor, tf.Tensor]:
            height = tf.cast(slices.dense_shape[0], slices.indices.dtype)
            table = tf.math.unsorted_segment_sum(slices.values, slices.indices, height)
            (total,) = self.all_reduce([table], [label])
            return total, tf.range(height)

        if keep_duplicate_indices or slices.dense_shape is None:
            return tf.IndexedSlices(*gathered(), slices.dense_shape)
        # Every member has to take the same way, so they add up how many rows they have: known in the forward pass.
        (rows,) = self.all_reduce([tf.cast(tf.size(slices.indices), tf.int64)], [f"{label} number of rows"])
        # From the shape: a worker without a row must come to the same.
        row_bytes = tf.reduce_prod(tf.shape(slices.values, tf.int64)[1:]) * slices.values.dtype.size
        # A gather moves every member's rows to every other; a ring moves a table about twice.
        height = tf.cast(slices.dense_shape[0], tf.int64)
        cheaper = rows * (row_bytes + slices.indices.dtype.size) < 2 * height * row_bytes
        values, indices = tf.cond(cheaper, gathered, whole)
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _is_small_table(slices: tf.IndexedSlices) -> bool:
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return shape is not None and int(shape.prod()) * slices.values.dtype.size <= _SMALL_TABLE_BYTES
