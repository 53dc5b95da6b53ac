"""Stamps of the clock, taken inside a step's graph: when the loss was known, gradients were there, and sums.

The host sees one call of one function. `tf.timestamp` is an operation like others, and one that waits for a tensor
tells when that was there. A step ends with one write of its stamps into a ring of rows in memory of TensorFlow's, which
the host reads some times a second. Nothing waits for a stamp but that write: stamps are taken out of the order in which
TensorFlow puts operations with effects.

A stamp that waits for a tensor of a GPU would tell when its kernel was launched, so there are none there. One that is
asked for in a branch of a condition or in a loop is left out: it may not happen.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.monitor.recording.rows import BUCKETS, LEAST_NORM, NORM_EVERY, STAMPS, Column

#: steps that the ring holds
ROWS = 1024

_FIRST = STAMPS[0]
_numbers = itertools.count()
_current = threading.local()


class GraphRing:
    """Rows of stamps in memory of TensorFlow's, written by steps and read by the host.

    Args:
        independent: takes an operation with effects, and lets it wait for its inputs alone.
    """

    def __init__(self, independent: Callable[[Any], Any]) -> None:
        import tensorflow as tf

        self.independent = independent
        name = f"tfdist_stamps_{next(_numbers)}"
        with tf.init_scope(), tf.device("/device:CPU:0"):  # no variable of a strategy's, and of no model's
            self.rows = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[ROWS, len(STAMPS)], shared_name=name)
            self.count = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"{name}_count")
            tf.raw_ops.AssignVariableOp(resource=self.rows, value=tf.zeros([ROWS, len(STAMPS)], tf.float64))
            tf.raw_ops.AssignVariableOp(resource=self.count, value=tf.zeros([], tf.int64))

    def read(self) -> tuple[int, Any]:
        """Return how many rows were written since the process began, and the ring, shape (ROWS, len(STAMPS))."""
        import tensorflow as tf

        with tf.device("/device:CPU:0"):
            count = tf.raw_ops.ReadVariableOp(resource=self.count, dtype=tf.int64)
            rows = tf.raw_ops.ReadVariableOp(resource=self.rows, dtype=tf.float64)
        return int(count), rows.numpy()


class Stamps:
    """The stamps of one replica's step; current in its block, while the step is traced.

    Args:
        ring: where they are written.

    Example:
        >>> with Stamps(ring) as stamps:                                                 # doctest: +SKIP
        ...     logs = step(stamps.from_begin(data))
        ...     stamps.end()
    """

    def __init__(self, ring: GraphRing) -> None:
        import tensorflow as tf

        self._ring = ring
        self._graph = tf.compat.v1.get_default_graph()
        self._before = len(self._graph.get_operations())
        self._own: set[str] = set()
        self._values: dict[int, Any] = {}
        self._arrivals: list[Any] = []
        self._completions: list[Any] = []

    def __enter__(self) -> "Stamps":
        _current.stamps = self
        self.mark(Column.GRAPH_BEGIN, ())
        return self

    def __exit__(self, *error: object) -> None:
        _current.stamps = None

    def from_begin(self, data: Any) -> Any:
        """Return a nest of tensors as it is, behind the stamp of the begin, which else comes when a thread is free."""
        import tensorflow as tf

        with tf.control_dependencies([self._values[Column.GRAPH_BEGIN]]):
            return tf.nest.map_structure(tf.identity, data, expand_composites=True)

    def mark(self, column: Column, tensors: Sequence[Any]) -> None:
        """Note the time at which all these tensors are there; the first one of a column counts."""
        if column not in self._values and (stamp := self._stamp(tensors)) is not None:
            self._values[column] = stamp

    def loss(self, value: Any) -> None:
        """Note the loss, and the time at which it is known."""
        import tensorflow as tf

        if self._is_here() and Column.LOSS not in self._values:
            self.mark(Column.FORWARD, [value])
            self._values[Column.LOSS] = tf.reshape(tf.cast(tf.reduce_sum(value), tf.float64), [])

    def reduction(self, tensors: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
        """Run a reduction of these tensors and note both times; return what it returns."""
        reduces_gradients = Column.GRADIENTS in self._values and Column.REDUCED not in self._values
        if not reduces_gradients or len(self._arrivals) == BUCKETS or not self._is_here():
            return run()
        arrived = self._stamp(tensors)
        results = run()
        self._arrivals.append(arrived)
        self._completions.append(self._stamp(results))
        return results

    def gradient_norm(self, squares: Callable[..., Any], tensors: Sequence[Any]) -> None:
        """Note the norm of the gradient, in one of so many steps: it is a pass over all of it, for which nothing waits.

        The condition stays one operation. `tf.cond` becomes switches between the operations of the step, and
        TensorFlow then runs the whole step by the executor that can follow them, which takes longer for each operation.

        Args:
            squares: returns the sum of the squares of all elements, a scalar, given the tensors.
            tensors: what it looks at.
        """
        import tensorflow as tf

        if not self._is_here() or Column.GRADIENT_NORM in self._values:
            return

        def measured(*tensors: Any) -> Any:
            norm = tf.sqrt(tf.cast(squares(*tensors), tf.float64))
            return tf.where(tf.equal(norm, 0), tf.constant(LEAST_NORM, tf.float64), norm)

        def left_out(*tensors: Any) -> Any:
            return tf.zeros([], tf.float64)

        with tf.device("/device:CPU:0"):
            number = tf.raw_ops.ReadVariableOp(resource=self._ring.count, dtype=tf.int64)
            self._own.add(number.op.name)
            is_due = tf.equal(tf.math.floormod(self._ring.independent(number), NORM_EVERY), 0)
        then, otherwise = (
            tf.function(one, autograph=False).get_concrete_function(
                *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
            )
            for one in (measured, left_out)
        )
        (self._values[Column.GRADIENT_NORM],) = tf.raw_ops.StatelessIf(
            cond=is_due, input=tensors, Tout=[tf.float64], then_branch=then, else_branch=otherwise
        )

    def end(self) -> None:
        """Note the end of the step, behind all that has effects, and write the row."""
        import tensorflow as tf

        if not self._is_here():
            return
        ring, zero = self._ring, tf.zeros([], tf.float64)
        traced = self._graph.get_operations()[self._before :]
        effects = [one for one in traced if one.op_def.is_stateful and one.name not in self._own]
        self._values[Column.GRAPH_END] = self._stamp(effects)
        self._values[Column.REDUCTIONS] = tf.constant(len(self._arrivals), tf.float64)
        for first, stamps in ((Column.ARRIVALS, self._arrivals), (Column.COMPLETIONS, self._completions)):
            self._values |= {first + index: stamp for index, stamp in enumerate(stamps)}
        with tf.device("/device:CPU:0"):
            row = tf.stack([self._values.get(column, zero) for column in STAMPS])
            number = tf.raw_ops.ReadVariableOp(resource=ring.count, dtype=tf.int64)
            place = tf.math.floormod(ring.independent(number), ROWS)
            written = tf.raw_ops.ResourceScatterUpdate(resource=ring.rows, indices=place, updates=row)
            ring.independent(written)
            with tf.control_dependencies([written]):
                ring.independent(tf.raw_ops.AssignVariableOp(resource=ring.count, value=number + 1))

    def _is_here(self) -> bool:
        import tensorflow as tf

        return tf.compat.v1.get_default_graph() is self._graph

    def _stamp(self, after: Sequence[Any]) -> Any:
        import tensorflow as tf

        if not self._is_here():
            return None
        leaves = [getattr(one, "values", one) if _is_slices(one) else one for one in after]
        with tf.device("/device:CPU:0"), tf.control_dependencies(leaves):
            stamp = self._ring.independent(tf.timestamp())
        self._own.add(stamp.op.name)
        return stamp


def _is_slices(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.IndexedSlices)


def current() -> Stamps | None:
    """Return the stamps of the step that this thread traces, or None: nobody wants to know, or it cannot be known."""
    return getattr(_current, "stamps", None)


def mark(column: Column, tensors: Sequence[Any]) -> None:
    """Note the time at which these tensors are there, if stamps are taken."""
    stamps = current()
    if stamps is not None:
        stamps.mark(column, tensors)


def reduction(tensors: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
    """Run a reduction of tensors, and note when they were there and when their sums, if stamps are taken."""
    stamps = current()
    return run() if stamps is None else stamps.reduction(tensors, run)


@functools.cache
def can_stamp() -> bool:
    """Return whether stamps tell the truth here: all that computes are processors."""
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")
