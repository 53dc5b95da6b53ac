"""Gradients of a stage's weights, added up over micro-batches, equal to one device's gradients of the whole batch."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import sparse_rows, sparse_sums
from tfdist.compat.tensorflow.sparse_rows import RowKind


class Kind(IntEnum):
    """The kind of gradient that a stage has for a weight."""

    NONE = 0
    DENSE = 1
    ROWS = 2


class Accumulated:
    """The sum over micro-batches of the gradient of one weight.

    Rows of a lookup stay separate, in the order of the micro-batches. Rows that do not come from examples (positions)
    are summed place by place, and those with distinct indices in a micro-batch by index.
    """

    def __init__(self, kinds: dict[tuple[int, int], RowKind] | None = None) -> None:
        self._kinds = {} if kinds is None else kinds
        self._dense: tf.Tensor | None = None
        self._rows: dict[int, list[tuple[tf.IndexedSlices, list[tuple[tf.Tensor, RowKind]]]]] = {}

    def add(self, gradient: Any, microbatch: int, examples: int) -> None:
        """Add the gradient of a micro-batch with this number of examples; None adds nothing."""
        if isinstance(gradient, tf.IndexedSlices):
            own = self._rows.setdefault(microbatch, [])
            parts = []
            for number, (part, kind) in enumerate(sparse_rows.parts(gradient.indices, examples=examples)):
                piece = len(own), number
                if examples > 1:
                    self._kinds[piece] = kind
                parts.append((part, self._kinds.get(piece, kind)))
            own.append((gradient, parts))
        elif gradient is not None:
            self._dense = gradient if self._dense is None else self._dense + gradient

    def result(self) -> Any:
        """Return the sum: a tensor, `tf.IndexedSlices`, or None if there was no gradient."""
        if not self._rows:
            return self._dense
        rows = self._joined()
        if self._dense is None:
            return rows
        return self._dense + tf.convert_to_tensor(rows)

    def _joined(self) -> tf.IndexedSlices:
        ordered = [self._rows[microbatch] for microbatch in sorted(self._rows)]
        shape = ordered[0][0][0].dense_shape
        values, indices = [], []
        # the same code makes the gradient of each micro-batch, so that pieces correspond
        for number, of_calls in enumerate(zip(*ordered, strict=True)):
            del number
            pieces = [_pieces(slices, parts) for slices, parts in of_calls]
            for same in zip(*pieces, strict=True):
                kinds = {kind for _, _, kind in same}
                if kinds == {RowKind.COMMON}:
                    values.append(tf.add_n([value for value, _, _ in same]))
                    indices.append(sparse_rows.marked(same[0][1], RowKind.COMMON))
                elif kinds == {RowKind.DISTINCT}:
                    summed = sparse_sums.by_index(
                        sparse_sums.together([tf.IndexedSlices(value, index, shape) for value, index, _ in same])
                    )
                    values.append(summed.values)
                    indices.append(sparse_rows.marked(summed.indices, RowKind.DISTINCT))
                else:
                    values += [value for value, _, _ in same]
                    indices += [sparse_rows.marked(index, RowKind.OWN) for _, index, _ in same]
        return tf.IndexedSlices(
            values[0] if len(values) == 1 else tf.concat(values, axis=0),
            indices[0] if len(indices) == 1 else tf.concat(indices, axis=0),
            shape,
        )


def kind_of(gradient: Accumulated | None) -> Kind:
    value = None if gradient is None else gradient.result()
    return Kind.NONE if value is None else Kind.ROWS if isinstance(value, tf.IndexedSlices) else Kind.DENSE


def _pieces(
    slices: tf.IndexedSlices, parts: Sequence[tuple[tf.Tensor, RowKind]]
) -> list[tuple[tf.Tensor, tf.Tensor, RowKind]]:
    flat = [tf.cast(tf.reshape(part, [-1]), slices.indices.dtype) for part, _ in parts]
    if len(flat) == 1:
        return [(slices.values, slices.indices, parts[0][1])]
    values = tf.split(slices.values, [tf.size(part) for part in flat], num=len(flat))
    return [(value, part, kind) for value, part, (_, kind) in zip(values, flat, parts, strict=True)]


def made_in_order(gradients: list[Any]) -> list[Any]:
    """Return gradients that are computed from the last to the first.

    Buckets fill in that order, which must be the same on replicas with different numbers of micro-batches.
    """
    return [None if one is None else _again(one) for one in reversed(gradients)][::-1]


def behind(sent: list[tf.Operation], gradients: list[Any]) -> list[Any]:
    """Return gradients that wait until all tensors that other stages need are sent.

    Otherwise a busy processor may update the last layers' weights before it computes the tensors that the stage sends.
    """
    with tf.control_dependencies(sent):
        return [None if one is None else _again(one) for one in gradients]


def _again(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):  # what its indices are, their operations tell
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)
