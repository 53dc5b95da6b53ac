"""Timestamps taken inside a step's graph: of the loss, gradients, and sums.

The host sees one call of one function. A stamp is an operation that waits for a tensor and notes when it is there. The
host reads the stamps of a step as a row of a ring. No operation of the step waits for a stamp: they are taken out of
TensorFlow's automatic control dependencies.

On a GPU a stamp is an event in the stream of its kernels, which tells when they had ended (`device_rows`). There are
none in conditions and loops, which may not run.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tfdist.monitor.recording.rows import BUCKETS, Column

_current = threading.local()


class Row(Protocol):
    """The row of a step that is being traced."""

    begun: Any  # what comes first, with the time at which the step begins
    names: set[str]  # of the operations that it has put into the graph, and that are not the step's

    def mark(self, column: int, after: Sequence[Any]) -> None:
        """Note the time at which these operations and tensors are there."""

    def loss(self, value: Any) -> None:
        """Note the loss, the sum of a tensor, and the time at which it is known."""

    def norm(self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], scale: Any) -> None:
        """Note the norm of the gradient's tensors in one of `NORM_EVERY` steps, counted from the first one.

        They were multiplied by ``scale`` unless it is None. ``squares`` returns the sum of the squares of all elements.
        """

    def end(self, after: Sequence[Any], reductions: int) -> None:
        """Note the end of the step, behind these operations, and how many reductions it had; the row is complete."""


class Opens(Protocol):
    """A recorder that opens a row for each step."""

    def open(self) -> Row:
        """Open the row of a step, in the graph that is being traced."""


class Rows(Opens, Protocol):
    """A ring of rows of stamps: columns as in `STAMPS`, times as seconds of the wall clock, float64."""

    def read(self) -> tuple[int, Any]:
        """Return how many rows were written since the process began, and the ring that holds the last of them.

        Rows of steps that overlap are in any order.
        """


class Stamps:
    """The stamps of one replica's step; current in its block, while the step is traced."""

    def __init__(self, rows: Opens) -> None:
        import tensorflow as tf

        self._rows = rows
        self._graph = tf.compat.v1.get_default_graph()
        self._before = len(self._graph.get_operations())
        self._noted: set[Column] = set()
        self._reductions = 0

    def __enter__(self) -> "Stamps":
        _current.stamps = self
        self._row = self._rows.open()
        return self

    def __exit__(self, *error: object) -> None:
        _current.stamps = None

    def from_begin(self, data: Any) -> Any:
        """A nest of tensors as it is, behind the stamp of the begin, which else comes when a thread is free."""
        import tensorflow as tf

        def behind(leaf: Any) -> Any:
            return None if leaf is None else tf.identity(leaf)

        with tf.control_dependencies([self._row.begun]):
            return tf.nest.map_structure(behind, data, expand_composites=True)

    def mark(self, column: Column, tensors: Sequence[Any]) -> None:
        """Note the time at which all these tensors are there; the first one of a column counts."""
        if self._is_new(column):
            self._row.mark(column, _leaves(tensors))

    def loss(self, value: Any) -> None:
        if self._is_new(Column.LOSS):
            self._row.loss(value)

    def reduction(self, tensors: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
        """Run a reduction of these tensors and note both times; return what it returns."""
        reduces_gradients = Column.GRADIENTS in self._noted and Column.REDUCED not in self._noted
        if not reduces_gradients or self._reductions == BUCKETS or not self._is_here():
            return run()
        number, self._reductions = self._reductions, self._reductions + 1
        self._row.mark(Column.ARRIVALS + number, _leaves(tensors))
        results = run()
        self._row.mark(Column.COMPLETIONS + number, _leaves(results))
        return results

    def gradient_norm(
        self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], *, scale: Any = None
    ) -> None:
        """Record the norm of the gradient in one of so many steps: it is a pass over all of the gradient."""
        if self._is_new(Column.GRADIENT_NORM):
            self._row.norm(squares, _leaves(tensors), scale)

    def end(self) -> None:
        """Note the end of the step, behind all that has effects: its row is complete."""
        if self._is_here():
            traced = self._graph.get_operations()[self._before :]
            effects = [one for one in traced if one.op_def.is_stateful and one.name not in self._row.names]
            self._row.end(effects, self._reductions)

    def _is_new(self, column: Column) -> bool:
        if not self._is_here() or column in self._noted:
            return False
        self._noted.add(column)
        return True

    def _is_here(self) -> bool:
        import tensorflow as tf

        return tf.compat.v1.get_default_graph() is self._graph


def _leaves(tensors: Sequence[Any]) -> list[Any]:
    import tensorflow as tf

    return [one.values if isinstance(one, tf.IndexedSlices) else one for one in tensors]


def current() -> Stamps | None:
    """The stamps of the step that this thread traces, or None."""
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
    """Stamps are right here: only processors compute."""
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")
