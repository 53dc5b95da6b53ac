"""Stamps of a parameter-server worker's part of a step, which its function returns.

Weights are read from servers from the begin on; the forward pass counts from when the last of them is there.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfdist.monitor.phases import Passes
from tfdist.monitor.recording.rows import Column

# seconds of a pass: operations that wait for nothing of each other may run in any order, and 0 stands for no pass
_LEAST = 1e-9
# weights of which it is known when they are there
_READS = 8


class PassesRow:
    """The stamps of a part that is being traced; see `graph.Row`."""

    def __init__(self, independent: Callable[[Any], Any]) -> None:
        self._independent = independent
        self._times: dict[int, Any] = {}
        self._loss: Any = None
        self.names: set[str] = set()
        self.begun: Any = None

    def open(self) -> "PassesRow":
        """Begin, in the graph that is being traced."""
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
        """Leave out the norm: this worker has a part of the gradient."""

    def end(self, after: Sequence[Any], reductions: int) -> None:
        """Leave out the end: `numbers` are what is written."""

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
    """Convert the numbers of `PassesRow.numbers`."""
    ready, known, gradients, loss, _ = map(float, numbers)
    forward = max(known - ready, _LEAST) if known else 0.0
    backward = max(gradients - max(known, ready), _LEAST)
    return Passes(forward, backward, loss if known else float("nan"))
