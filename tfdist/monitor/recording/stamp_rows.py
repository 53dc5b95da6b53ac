"""Rows of stamps: in a ring, by our own operations or by `tf.timestamp`; or of a part that a chief's worker returns."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tfdist.monitor.phases import Passes
from tfdist.monitor.recording.rows import LEAST_NORM, NORM_EVERY, ROWS_OF_STAMPS, STAMPS, Column

_numbers = itertools.count()
_FIRST = STAMPS[0]


class OperationRows:
    """A ring in TensorFlow's memory, into which the last operations of a step write times; see `graph_stamps.Rows`."""

    def __init__(self, independent: Callable[[Any], Any]) -> None:
        import tensorflow as tf

        self.independent = independent
        name, shape = f"tfdist_stamps_{next(_numbers)}", [ROWS_OF_STAMPS, len(STAMPS)]
        with tf.init_scope(), tf.device("/device:CPU:0"):  # no variable of a strategy's, and of no model's
            self.ring = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=shape, shared_name=name)
            self.count = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"{name}_count")
            tf.raw_ops.AssignVariableOp(resource=self.ring, value=tf.zeros(shape, tf.float64))
            tf.raw_ops.AssignVariableOp(resource=self.count, value=tf.zeros([], tf.int64))

    def read(self) -> tuple[int, Any]:
        import tensorflow as tf

        with tf.device("/device:CPU:0"):
            count = tf.raw_ops.ReadVariableOp(resource=self.count, dtype=tf.int64)
            rows = tf.raw_ops.ReadVariableOp(resource=self.ring, dtype=tf.float64)
        return int(count), rows.numpy()

    def open(self) -> "OperationRow":
        return OperationRow(self)


class OperationRow:
    def __init__(self, rows: OperationRows) -> None:
        self._rows = rows
        self._values: dict[int, Any] = {}
        self.names: set[str] = set()
        self.mark(Column.GRAPH_BEGIN, ())
        self.begun = self._values[Column.GRAPH_BEGIN]

    def mark(self, column: int, after: Sequence[Any]) -> None:
        import tensorflow as tf

        with tf.device("/device:CPU:0"), tf.control_dependencies(after):
            stamp = self._rows.independent(tf.timestamp())
        self.names.add(stamp.op.name)
        self._values[column] = stamp

    def loss(self, value: Any) -> None:
        import tensorflow as tf

        self.mark(Column.FORWARD, [value])
        self._values[Column.LOSS] = tf.reshape(tf.cast(tf.reduce_sum(value), tf.float64), [])

    def norm(self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], scale: Any) -> None:
        """Record the norm of the gradient in one of every so many steps.

        The condition stays one operation: `tf.cond` becomes switches, for which TensorFlow runs the step by a slower
        executor.
        """
        import tensorflow as tf

        def measured(scale: Any, *tensors: Any) -> Any:
            norm = tf.sqrt(tf.cast(squares(tensors), tf.float64) / scale**2)
            return tf.where(tf.equal(norm, 0), tf.constant(LEAST_NORM, tf.float64), norm)

        def left_out(scale: Any, *tensors: Any) -> Any:
            return tf.zeros([], tf.float64)

        with tf.device("/device:CPU:0"):
            number = tf.raw_ops.ReadVariableOp(resource=self._rows.count, dtype=tf.int64)
            self.names.add(number.op.name)
            is_due = tf.equal(tf.math.floormod(self._rows.independent(number), NORM_EVERY), 0)
        inputs = [tf.cast(1.0 if scale is None else scale, tf.float64), *tensors]
        then, otherwise = (
            tf.function(one, autograph=False).get_concrete_function(
                *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs)
            )
            for one in (measured, left_out)
        )
        (self._values[Column.GRADIENT_NORM],) = tf.raw_ops.StatelessIf(
            cond=is_due, input=inputs, Tout=[tf.float64], then_branch=then, else_branch=otherwise
        )

    def end(self, after: Sequence[Any], reductions: int) -> None:
        import tensorflow as tf

        self.mark(Column.GRAPH_END, after)
        rows, zero = self._rows, tf.zeros([], tf.float64)
        self._values[Column.REDUCTIONS] = tf.constant(reductions, tf.float64)
        with tf.device("/device:CPU:0"):
            row = tf.stack([self._values.get(column, zero) for column in STAMPS])
            number = tf.raw_ops.ReadVariableOp(resource=rows.count, dtype=tf.int64)
            place = tf.math.floormod(rows.independent(number), ROWS_OF_STAMPS)
            written = tf.raw_ops.ResourceScatterUpdate(resource=rows.ring, indices=place, updates=row)
            rows.independent(written)
            with tf.control_dependencies([written]):
                rows.independent(tf.raw_ops.AssignVariableOp(resource=rows.count, value=number + 1))


class CompiledRows:
    """A ring in memory of this process; see `graph_stamps.Rows`.

    The first operation opens a row and returns its number as a tensor, which the others take, so overlapping steps do
    not mix. Nothing waits for them; the last to run puts the row into the ring.
    """

    def __init__(self, library: Any, independent: Callable[[Any], Any]) -> None:
        self._library, self._independent = library, independent
        self._number = library.make(ROWS_OF_STAMPS, len(STAMPS))

    def read(self) -> tuple[int, np.ndarray]:
        found = np.zeros([ROWS_OF_STAMPS, len(STAMPS)])
        return self._library.read(self._number, found), found

    def open(self) -> "CompiledRow":
        return CompiledRow(self._library.ops, self._number, self._independent)


class CompiledRow:
    def __init__(self, ops: Any, rows: int, independent: Callable[[Any], Any]) -> None:
        self._ops, self._rows, self._independent = ops, rows, independent
        self._others = 0
        self.names: set[str] = set()
        self.begun = self._row = self._added(ops.tfdist_stamp_begin, (), column=Column.GRAPH_BEGIN - _FIRST)

    def mark(self, column: int, after: Sequence[Any]) -> None:
        self._write(self._ops.tfdist_stamp, after, column=column - _FIRST)

    def loss(self, value: Any) -> None:
        places = {"column": Column.FORWARD - _FIRST, "value": Column.LOSS - _FIRST}
        self._write(self._ops.tfdist_stamp_loss, (), loss=_float(value), **places)

    def norm(self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], scale: Any) -> None:
        import tensorflow as tf

        what = {
            "scale": [] if scale is None else [tf.cast(scale, tf.float64)],
            "values": [_float(one) for one in tensors],
            "column": Column.GRADIENT_NORM - _FIRST,
            "count": NORM_EVERY,
        }
        self._write(self._ops.tfdist_stamp_norm, (), **what)

    def end(self, after: Sequence[Any], reductions: int) -> None:
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


# seconds of a pass: operations that wait for nothing of each other may run in any order, and 0 stands for no pass
_LEAST = 1e-9
# weights of which it is known when they are there
_READS = 8


class PassesRow:
    def __init__(self, independent: Callable[[Any], Any]) -> None:
        self._independent = independent
        self._times: dict[int, Any] = {}
        self._loss: Any = None
        self.names: set[str] = set()
        self.begun: Any = None

    def open(self) -> "PassesRow":
        self.begun = self._now(())
        return self

    def mark(self, column: int, after: Sequence[Any]) -> None:
        if column == Column.GRADIENTS:
            self._times[column] = self._now(after)

    def loss(self, value: Any) -> None:
        import tensorflow as tf

        self._times[Column.FORWARD] = self._now([value])
        self._loss = tf.cast(tf.reduce_sum(value), tf.float64)

    def norm(self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], scale: Any) -> None:
        """Record no norm: this worker has only a part of the gradient."""

    def end(self, after: Sequence[Any], reductions: int) -> None:
        """Record no end: `numbers` are written instead."""

    def numbers(self, reads: Sequence[Any]) -> Any:
        """Return the numbers for `Passes`, float64 of shape (5,); None without a gradient.

        The last number only makes TensorFlow wait for the largest weights: it would drop an operation without a
        consumer.
        """
        import tensorflow as tf

        if Column.GRADIENTS not in self._times:
            return None
        largest = sorted(reads, key=lambda read: -(read.shape.num_elements() or 0))[:_READS]
        found = [tf.reshape(tf.slice(read, [0] * read.shape.rank, [1] * read.shape.rank), []) for read in largest]
        zero = tf.zeros([], tf.float64)
        times = [self._now([self.begun, *found]), self._times.get(Column.FORWARD, zero), self._times[Column.GRADIENTS]]
        one_of_each = [tf.cast(number, tf.float64) for number in found]
        return tf.stack([*times, zero if self._loss is None else self._loss, tf.add_n([zero, *one_of_each])])

    def _now(self, after: Sequence[Any]) -> Any:
        import tensorflow as tf

        with tf.control_dependencies(after):
            stamp = self._independent(tf.timestamp())
        self.names.add(stamp.op.name)
        return stamp


def passes_of(numbers: Iterable[float]) -> Passes:
    ready, known, gradients, loss, _ = map(float, numbers)
    forward = max(known - ready, _LEAST) if known else 0.0
    backward = max(gradients - max(known, ready), _LEAST)
    return Passes(forward, backward, loss if known else float("nan"))
