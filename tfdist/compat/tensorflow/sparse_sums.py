"""Sums of sparse gradients over replicas: of rows of examples, of common rows, and of distinct rows.

On one device the gradient of a lookup has a row for each index. Rows of examples are concatenated over replicas. Common
rows (positions) are added by place, since an index may occur several times, as in buckets of relative positions.
Distinct rows are added by index. As dense tensors, all three sums are the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import sparse_rows
from tfdist.compat.tensorflow.sparse_rows import RowKind


def divided(gradient: tf.IndexedSlices) -> list[tuple[tf.IndexedSlices, RowKind]]:
    """Divide the rows of a gradient by their kind, in the same order on all replicas."""
    parts = sparse_rows.parts(gradient.indices)
    kinds = [kind for _, kind in parts]
    if set(kinds) == {RowKind.OWN} or gradient.dense_shape is None:
        return [(gradient, RowKind.OWN)]
    counts = [part.shape.num_elements() for part, _ in parts]
    groups = [[place for place, kind in enumerate(kinds) if kind is one] for one in (RowKind.OWN, RowKind.COMMON)]
    groups += [[place] for place, kind in enumerate(kinds) if kind is RowKind.DISTINCT]
    groups = [group for group in groups if group]
    if len(groups) == 1:
        return [(_counted(gradient, counts), kinds[0])]
    sizes = [tf.size(part) for part, _ in parts]
    values = tf.split(gradient.values, sizes, num=len(parts))
    indices = tf.split(gradient.indices, sizes, num=len(parts))

    def joined(group: list[int]) -> tf.IndexedSlices:
        rows, numbers = (tf.concat([every[place] for place in group], axis=0) for every in (values, indices))
        return _counted(tf.IndexedSlices(rows, numbers, gradient.dense_shape), [counts[place] for place in group])

    return [(joined(group), kinds[group[0]]) for group in groups]


def _counted(rows: tf.IndexedSlices, counts: list[int | None]) -> tf.IndexedSlices:
    """Return the rows, with their number in the static shape if it is known."""
    total = None if None in counts else sum(filter(None, counts))
    values = tf.ensure_shape(rows.values, [total, *rows.values.shape[1:]])
    return tf.IndexedSlices(values, tf.ensure_shape(rows.indices, [total]), rows.dense_shape)


def together(parts: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    if len(parts) == 1:
        return parts[0]
    values = tf.concat([part.values for part in parts], axis=0)
    return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], axis=0), parts[0].dense_shape)


def by_index(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    indices, places = tf.unique(rows.indices)
    values = tf.math.unsorted_segment_sum(rows.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, rows.dense_shape)


def sums(values: list[Any], sum_of: Callable[[list[Any], list[int]], list[Any]]) -> list[Any]:
    """Return sums over replicas with the same rows that one device has."""
    plans = [_plan(value) for value in values]
    sent = [one for parts, _ in plans for one in parts]
    places = [place for place, (parts, _) in enumerate(plans) for _ in parts]
    arrived = iter(sum_of(sent, places))
    return [make([next(arrived) for _ in parts]) for parts, make in plans]


def _plan(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the tensors to sum instead of a value, and a function that makes the value's sum from their sums."""
    if not isinstance(value, tf.IndexedSlices):
        return [value], lambda arrived: arrived[0]
    ways = [_way(rows, kind) for rows, kind in divided(value)]

    def make(arrived: list[Any]) -> tf.IndexedSlices:
        return together([back(total) for (_, back), total in zip(ways, arrived, strict=True)])

    return [sent for sent, _ in ways], make


def _way(rows: tf.IndexedSlices, kind: RowKind) -> tuple[Any, Callable[[Any], tf.IndexedSlices]]:
    """Return the tensor to sum instead of rows of a kind, and a function that makes the rows' sum from its sum."""
    if kind is RowKind.OWN:
        return rows, lambda total: total
    if kind is RowKind.DISTINCT:
        return rows, by_index
    if rows.values.shape[0] is not None:
        return rows.values, lambda total: tf.IndexedSlices(total, rows.indices, rows.dense_shape)
    # The number of rows may depend on the data, which may differ between workers. So places travel with the rows.
    return _numbered(rows), lambda total: _by_number(total, rows.indices.dtype)


def _numbered(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return rows whose indices also encode their places."""
    places = tf.range(tf.size(rows.indices, tf.int64)) * tf.cast(rows.dense_shape[0], tf.int64)
    return tf.IndexedSlices(rows.values, places + tf.cast(rows.indices, tf.int64), rows.dense_shape)


def _by_number(rows: tf.IndexedSlices, dtype: tf.DType) -> tf.IndexedSlices:
    """Add numbered rows of the same place."""
    height = tf.cast(rows.dense_shape[0], tf.int64)
    places, indices = rows.indices // height, rows.indices % height
    count = tf.reduce_max(tf.concat([places, [-1]], axis=0)) + 1
    values = tf.math.unsorted_segment_sum(rows.values, places, count)
    indices = tf.cast(tf.math.unsorted_segment_max(indices, places, count), dtype)
    return tf.IndexedSlices(values, indices, rows.dense_shape)


def reduced(value: Any, reduce: Callable[[list[Any]], list[Any]]) -> Any:
    """Reduce a nest over replicas by a function for lists; common rows occur once in the result.

    Bare `IndexedSlices`, which scatter into a variable, are not classified, because they are no gradients.
    """
    if isinstance(value, tf.IndexedSlices):
        return of_rows(reduce([as_rows(value)])[0], value)

    def sum_of(flat: list[Any], places: list[int]) -> list[Any]:
        totals = reduce([as_rows(one) for one in flat])
        return [of_rows(total, one) for total, one in zip(totals, flat, strict=True)]

    return tf.nest.pack_sequence_as(value, sums(tf.nest.flatten(value), sum_of))


def reduced_by(
    reduce: Callable[[list[Any], list[str], bool], list[Any]],
    reduce_op: Any,
    value: Any,
    *,
    labels: Sequence[str] | None,
    keep_duplicate_indices: bool,
    replicas: int,
) -> Any:
    """Return a nest, reduced over replicas by a collective that takes labels of the values."""
    flat = tf.nest.flatten(value)
    keep, names = keep_duplicate_indices, [""] * len(flat) if labels is None else list(labels)

    def sum_of(sent: list[Any], places: list[int]) -> list[Any]:
        return reduce(sent, [names[place] for place in places], keep)

    # bare rows scatter into a variable, and are no gradients
    if keep and not isinstance(value, tf.IndexedSlices):
        totals = sums(flat, sum_of)
    else:
        totals = sum_of(flat, list(range(len(flat))))
    if reduce_op == tf.distribute.ReduceOp.MEAN:
        totals = [mean_of(total, replicas) for total in totals]
    return tf.nest.pack_sequence_as(value, totals)


def mean_of(total: Any, count: int) -> Any:
    """Return the mean, given the sum, in the dtype of the sum."""
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(mean_of(total.values, count), total.indices, total.dense_shape)
    return total / count if total.dtype.is_floating or total.dtype.is_complex else total // count


def as_rows(value: Any) -> Any:
    """Return a value in a dtype that TensorFlow's collectives carry: no complex numbers, and no rows of bfloat16."""
    if value.dtype.is_complex:
        return _with_values(value, lambda one: tf.stack([tf.math.real(one), tf.math.imag(one)], axis=-1))
    if isinstance(value, tf.IndexedSlices) and value.dtype == tf.bfloat16:
        return _with_values(value, lambda one: tf.bitcast(one, tf.float16))
    return value


def of_rows(total: Any, value: Any) -> Any:
    """Return the result of a collective on `as_rows` of a value, in the dtype of the value."""
    if total.dtype == value.dtype:
        return total
    if value.dtype.is_complex:
        return _with_values(total, lambda one: tf.complex(one[..., 0], one[..., 1]))
    return _with_values(total, lambda one: tf.bitcast(one, value.dtype))


def _with_values(value: Any, convert: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    if not isinstance(value, tf.IndexedSlices):
        return convert(value)
    return tf.IndexedSlices(convert(value.values), value.indices, value.dense_shape)
