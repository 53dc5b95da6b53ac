"""Rows of stamps that operations of our own write, in memory of this process.

The first one opens a row, and each other is given its number: a number is a tensor, so steps that overlap do not mix.
All others return nothing. Nobody waits for them, the last operation neither: whichever of them comes last puts the row
into the ring. Their kernels are in `tfdist/native/stamps`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.monitor.recording.rows import NORM_EVERY, ROWS_OF_STAMPS, STAMPS, Column

_FIRST = STAMPS[0]


class CompiledRows:
    """A ring of rows; see `graph.Rows`."""

    def __init__(self, library: Any, independent: Callable[[Any], Any]) -> None:
        self._library, self._independent = library, independent
        self._number = library.make(ROWS_OF_STAMPS, len(STAMPS))

    def read(self) -> tuple[int, np.ndarray]:
        """Return how many rows were written since the process began, and the ring; see `graph.Rows`."""
        found = np.zeros([ROWS_OF_STAMPS, len(STAMPS)])
        return self._library.read(self._number, found), found

    def open(self) -> "CompiledRow":
        """Open the row of a step, in the graph that is being traced."""
        return CompiledRow(self._library.ops, self._number, self._independent)


class CompiledRow:
    """The row of a step that is being traced; see `graph.Row`."""

    def __init__(self, ops: Any, rows: int, independent: Callable[[Any], Any]) -> None:
        self._ops, self._rows, self._independent = ops, rows, independent
        self._others = 0
        self.names: set[str] = set()
        self.begun = self._row = self._added(ops.tfdist_stamp_begin, (), column=Column.GRAPH_BEGIN - _FIRST)

    def mark(self, column: int, after: Sequence[Any]) -> None:
        """Note the time at which these operations and tensors are there."""
        self._write(self._ops.tfdist_stamp, after, column=column - _FIRST)

    def loss(self, value: Any) -> None:
        """Note the loss, and the time at which it is known."""
        places = {"column": Column.FORWARD - _FIRST, "value": Column.LOSS - _FIRST}
        self._write(self._ops.tfdist_stamp_loss, (), loss=_float(value), **places)

    def norm(self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], scale: Any) -> None:
        """Note the norm of the gradient in one of so many steps."""
        import tensorflow as tf

        what = {
            "scale": [] if scale is None else [tf.cast(scale, tf.float64)],
            "values": [_float(one) for one in tensors],
            "column": Column.GRADIENT_NORM - _FIRST,
            "count": NORM_EVERY,
        }
        self._write(self._ops.tfdist_stamp_norm, (), **what)

    def end(self, after: Sequence[Any], reductions: int) -> None:
        """Note the end of the step, behind these operations."""
        places = {"column": Column.GRAPH_END - _FIRST, "value": Column.REDUCTIONS - _FIRST}
        stamp = self._ops.tfdist_stamp_end
        self._added(stamp, after, row=self._row, count=reductions, others=self._others, **places)

    def _write(self, operation: Any, after: Sequence[Any], **arguments: Any) -> None:
        self._added(operation, after, row=self._row, **arguments)
        self._others += 1

    def _added(self, operation: Any, after: Sequence[Any], **arguments: Any) -> Any:
        import tensorflow as tf

        with tf.device("/device:CPU:0"), tf.control_dependencies(after):
            added = self._independent(operation(rows=self._rows, **arguments))
        self.names.add(added.name if isinstance(added, tf.Operation) else added.op.name)
        return added


def _float(value: Any) -> Any:
    import tensorflow as tf

    taken = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
    value = tf.convert_to_tensor(value)
    return value if value.dtype in taken else tf.cast(value, tf.float32)
