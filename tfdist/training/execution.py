"""Several steps in one graph, which takes its batches from the input by itself: `steps_per_execution`.

The graph is a loop around the function of a single step, traced once and called as it is, so the numbers are those of
single steps.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.training.epoch import Epoch
from tfdist.training.heartbeat import Progress, heartbeat

_untraced = tf.autograph.experimental.do_not_convert


class Execution:
    """Runs several steps in one call.

    Args:
        step: the function of a step, traced: takes the examples of all replicas and the tensors of a batch.
        renew: called from another thread whenever a step has gone on; None where nobody wants to know.
        on_trace: called when the graph is made.
    """

    def __init__(self, step: Any, *, renew: Callable[[], None] | None, on_trace: Callable[[], None]) -> None:
        self._step = step
        self._renew = renew
        self._progress = None if renew is None else Progress()
        self._on_trace = on_trace
        self._function: Any = None

    def run(self, batches: Epoch, count: int) -> tuple[Any, list[int]]:
        """Run steps on the next batches; return the last one's logs, and the examples of all replicas in each.

        They are fewer than ``count`` where the input has ended, and may be none.
        """
        logs: Any = None
        rows: list[int] = []

        def take(iterator: Any) -> int:
            nonlocal logs, rows
            if self._function is None:
                counts = tf.TensorSpec([], tf.int32)
                self._function = tf.function(_untraced(self._loop)).get_concrete_function(iterator, counts)
            last, counted = self._function(iterator, tf.constant(count, tf.int32))
            rows = counted.numpy().tolist()
            logs = last.get_value() if rows else None
            return len(rows)

        with self._watched():
            batches.give(take)
        return logs, rows

    def _watched(self) -> AbstractContextManager[None]:
        if self._progress is None or self._renew is None:
            return contextlib.nullcontext()
        return heartbeat().of(self._progress, self._renew)

    def _loop(self, iterator: Any, count: tf.Tensor) -> tuple[tf.experimental.Optional, tf.Tensor]:
        self._on_trace()
        specs = tf.nest.map_structure(tf.type_spec_from_value, self._step.structured_outputs, expand_composites=False)
        nothing = tf.experimental.Optional.empty(specs)
        batch = self._next(iterator, [] if self._progress is None else [self._progress.reset()])
        rows = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[])

        def goes_on(done: tf.Tensor, batch: Any, logs: Any, rows: Any) -> tf.Tensor:
            return tf.logical_and(done < count, batch.has_value())

        def run(done: tf.Tensor, batch: Any, logs: Any, rows: Any) -> tuple[Any, ...]:
            _, examples, *tensors = batch.get_value()
            logs = self._step(examples, *tensors)
            rows = rows.write(done, examples)
            done += 1
            after = tf.nest.flatten(logs, expand_composites=True)
            # the batch after the last step is the next execution's
            batch = tf.cond(done < count, lambda: self._next(iterator, after), lambda: _no_batch(batch))
            return done, batch, tf.experimental.Optional.from_value(logs), rows

        # One step after the other: collectives of two steps have the same names.
        _, _, logs, rows = tf.while_loop(goes_on, run, (tf.constant(0), batch, nothing, rows), parallel_iterations=1)
        return logs, rows.stack()

    def _next(self, iterator: Any, after: list[Any]) -> Any:
        """Return the next batch, an optional; where somebody looks, it is asked for when these tensors are there."""
        if self._progress is None:
            return iterator.get_next_as_optional()
        with tf.control_dependencies(after):
            asked = self._progress.beat()
        with tf.control_dependencies([asked]):
            batch = iterator.get_next_as_optional()
        with tf.control_dependencies([batch.has_value()]):
            self._progress.beat()
        return batch


def _no_batch(batch: tf.experimental.Optional) -> tf.experimental.Optional:
    return tf.experimental.Optional.empty(batch.element_spec)
