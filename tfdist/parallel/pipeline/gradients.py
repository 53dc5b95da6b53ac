"""Gradients of a stage's weights, added up over micro-batches, as one device has them of the whole batch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import sparse_rows


class Accumulated:
    """The sum over micro-batches of the gradient of one weight.

    Dense gradients are added as they come. Rows of a lookup stay apart, in the order of the micro-batches, as one
    device has them of the whole batch; those that do not come from examples (positions) are added place by place.

    Args:
        common: whether each piece of each lookup is alike for all examples, as micro-batches of several examples have
            shown in earlier steps. One example does not tell what is repeated for each, and replicas have to agree.
    """

    def __init__(self, common: dict[tuple[int, int], bool] | None = None) -> None:
        self._common = {} if common is None else common
        self._dense: tf.Tensor | None = None
        self._rows: dict[int, list[tuple[tf.IndexedSlices, list[tuple[tf.Tensor, bool]]]]] = {}

    def add(self, gradient: Any, microbatch: int, examples: int) -> None:
        """Add the gradient of a micro-batch of so many examples; None adds nothing."""
        if isinstance(gradient, tf.IndexedSlices):
            own = self._rows.setdefault(microbatch, [])
            parts = []
            for number, (part, is_common) in enumerate(sparse_rows.parts(gradient.indices, examples=examples)):
                piece = len(own), number
                if examples > 1:
                    self._common[piece] = is_common
                parts.append((part, self._common.get(piece, is_common)))
            own.append((gradient, parts))
        elif gradient is not None:
            self._dense = gradient if self._dense is None else self._dense + gradient

    def result(self) -> Any:
        """Return the sum: a tensor, `tf.IndexedSlices`, or None where there was none."""
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
                if all(is_common for _, _, is_common in same):
                    values.append(tf.add_n([value for value, _, _ in same]))
                    indices.append(sparse_rows.of_all(same[0][1]))
                else:
                    values += [value for value, _, _ in same]
                    indices += [sparse_rows.of_examples(index) for _, index, _ in same]
        return tf.IndexedSlices(
            values[0] if len(values) == 1 else tf.concat(values, axis=0),
            indices[0] if len(indices) == 1 else tf.concat(indices, axis=0),
            shape,
        )


def _pieces(
    slices: tf.IndexedSlices, parts: Sequence[tuple[tf.Tensor, bool]]
) -> list[tuple[tf.Tensor, tf.Tensor, bool]]:
    """Return values, indices, and whether they are alike for all examples, of each part of some rows."""
    flat = [tf.cast(tf.reshape(part, [-1]), slices.indices.dtype) for part, _ in parts]
    if len(flat) == 1:
        return [(slices.values, slices.indices, parts[0][1])]
    values = tf.split(slices.values, [tf.size(part) for part in flat], num=len(flat))
    return [(value, part, common) for value, part, (_, common) in zip(values, flat, parts, strict=True)]
