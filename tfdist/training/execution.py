"""Graphs that take batches from the input: a graph of several steps (`steps_per_execution`), or of a single step.

The graph of several steps is a loop around the function of a single step. That function is traced once and called
unchanged, so the numbers are those of single steps. Python does not run until such a graph ends. So the graph counts in
a variable, and a thread reads the variable to report progress.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import device_batches, tf_data
from tfdist.compat.tensorflow.steps.traced_call import TracedCall
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training.epoch import Batch, Element, Epoch, Layout

_LOOK_SECONDS = 0.2
_untraced = tf.autograph.experimental.do_not_convert


class Progress:
    """A counter in a graph: odd while the graph waits for a batch, even while it computes a step."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)

    def reset(self) -> tf.Operation:
        return self._count.assign(0, read_value=False)

    def beat(self) -> tf.Operation:
        return self._count.assign_add(1, read_value=False)

    def count(self) -> int:
        """The count, from any thread."""
        return int(self._count.numpy())

    @property
    def waits_for_input(self) -> bool:
        """Whether the graph waits for a batch, or failed during such a wait; from any thread."""
        return bool(self.count() % 2)


class InputError(Exception):
    """The input raised an error before the graph of a step communicated with other workers."""

    def __init__(self, error: tf.errors.OpError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class _UnderWay:
    progress: Progress
    renew: Callable[[], None]
    seen: int = 0


class Heartbeat:
    """The thread that reads the progress of graphs in this process; it starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[int, _UnderWay] = {}  # by the thread that steps
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def of(self, progress: Progress, renew: Callable[[], None]) -> Iterator[None]:
        """Report progress to the step clock, and call ``renew``, while the graph in the block advances."""
        with self._lock:
            self._under_way[get_ident()] = _UnderWay(progress, renew)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="tfdist-heartbeat", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[get_ident()]

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:  # no report about a graph that has ended
                for thread, one in self._under_way.items():
                    count = one.progress.count()
                    if count != one.seen or count % 2:  # a worker that waits for its input does not wait for others
                        one.renew()
                    if count != one.seen:
                        one.seen = count
                        step_clock().goes_on(thread, Phase.INPUT if count % 2 else Phase.EXECUTE)


@functools.cache
def heartbeat() -> Heartbeat:
    return Heartbeat()


class Last:
    """Outputs that a graph of several steps keeps: here the logs of the last step, as an optional."""

    def begin(self, outputs: Any) -> Any:
        """Return the loop's variables before any step, given the outputs of a step."""
        specs = tf.nest.map_structure(tf.type_spec_from_value, outputs, expand_composites=False)
        return tf.experimental.Optional.empty(specs)

    def add(self, kept: Any, number: tf.Tensor, outputs: Any) -> Any:
        """Return the loop's variables after step ``number``."""
        return tf.experimental.Optional.from_value(outputs)

    def end(self, kept: Any) -> Any:
        return kept

    def value(self, returned: Any) -> Any:
        """Return the graph's outputs for Python, if there was a step."""
        return returned.get_value()


class Rows:
    """Outputs that a graph of several steps keeps: the rows of all steps, concatenated."""

    @staticmethod
    def can_keep(outputs: Any) -> bool:
        """Return True for tensors whose shape is known except for the number of rows."""
        return all(
            isinstance(leaf, tf.Tensor) and leaf.shape.rank and leaf.shape[1:].is_fully_defined()
            for leaf in tf.nest.flatten(outputs)
        )

    def begin(self, outputs: Any) -> Any:
        self._structure = outputs
        return [
            tf.TensorArray(
                leaf.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, *leaf.shape[1:]]
            )
            for leaf in tf.nest.flatten(outputs)
        ]

    def add(self, kept: Any, number: tf.Tensor, outputs: Any) -> Any:
        return [array.write(number, leaf) for array, leaf in zip(kept, tf.nest.flatten(outputs), strict=True)]

    def end(self, kept: Any) -> Any:
        return [array.concat() for array in kept]

    def value(self, returned: Any) -> Any:
        return tf.nest.pack_sequence_as(self._structure, returned)


class OneStep:
    """The graph of a single step, which takes its batch from the input without Python.

    With ``renew`` a thread reports whether the graph waits for its batch, as for `Execution`.
    """

    def __init__(
        self, step: Any, layout: Layout, *, renew: Callable[[], None] | None, on_trace: Callable[[], None]
    ) -> None:
        self._step = step
        self._specs = (*Element.numbers(), *layout.signature)
        self._renew = renew
        self._progress = None if renew is None else Progress()
        self._on_trace = on_trace
        self._call: TracedCall | None = None

    @staticmethod
    def can_run(step: Any) -> bool:
        """Return True for a step whose logs have known shapes."""
        leaves = tf.nest.flatten(step.structured_outputs)
        return all(isinstance(leaf, tf.Tensor) and leaf.shape.is_fully_defined() for leaf in leaves)

    def run(self, batches: Epoch) -> tuple[Any, int]:
        """Run the step on the next batch; return its logs, and 1, or 0 if the input has ended.

        If progress is reported, an error of the input becomes an `InputError`.
        """
        logs: Any = None

        def take(iterator: Any) -> int:
            nonlocal logs
            with _watched(self._progress, self._renew):
                try:
                    was_there, logs = self._called(iterator, tf.type_spec_from_value(iterator))
                except tf.errors.OpError as error:
                    if self._progress is not None and self._progress.waits_for_input:
                        self._progress.reset()
                        raise InputError(error) from error
                    raise
            return int(was_there)

        taken = batches.give(take)
        return logs, taken

    def run_on(self, batch: Batch) -> Any:
        """Run the step on a batch that Python has taken; return its logs."""
        numbers = (tf.constant(0, tf.int64), batch.rows)
        _, logs = self._called_on(tf.data.Dataset.from_tensors((*numbers, *batch.tensors)))
        return logs

    def prepare(self) -> None:
        """Trace and optimize the graph and make its kernels, by a run on an input that has ended: no step runs."""
        self._called_on(tf.data.Dataset.from_tensors(tf_data.one_row(self._specs)).take(0))

    def _called_on(self, dataset: tf.data.Dataset) -> Any:
        return self._called(iter(dataset), tf.data.IteratorSpec(self._specs))

    def _called(self, iterator: Any, spec: tf.TypeSpec) -> Any:
        if self._call is None:
            self._call = TracedCall(tf.function(_untraced(self._next), input_signature=[spec]))
        return self._call.of_flat()(tf.nest.flatten([iterator], expand_composites=True))

    def _next(self, iterator: Any) -> tuple[tf.Tensor, Any]:
        """Return whether there was a batch, and the logs of its step.

        Without a batch no part of the step may run. Without the condition, operations that need no batch would run,
        such as the step counter and weight decay.
        """
        self._on_trace()
        batch, is_there = _next_of(iterator, self._progress, [])

        def step() -> Any:
            _, examples, *tensors = device_batches.value_of(iterator, batch)
            return self._step(examples, *tensors)

        def nothing() -> Any:
            return tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), self._step.structured_outputs)

        return is_there, tf.cond(is_there, step, nothing)


class Execution:
    def __init__(
        self, step: Any, kept: Last | Rows, *, renew: Callable[[], None] | None, on_trace: Callable[[], None]
    ) -> None:
        self._step = step
        self._kept = kept
        self._renew = renew
        self._progress = None if renew is None else Progress()
        self._on_trace = on_trace
        self._function: Any = None

    def run(self, batches: Epoch, count: int) -> tuple[Any, list[int]]:
        """Run steps on the next batches; return the kept outputs, and the examples of all replicas in each step.

        If the input ends, fewer than ``count`` steps run, perhaps none.
        """
        kept: Any = None
        rows: list[int] = []

        def take(iterator: Any) -> int:
            nonlocal kept, rows
            if self._function is None:
                counts = tf.TensorSpec([], tf.int32)
                self._function = tf.function(_untraced(self._loop)).get_concrete_function(iterator, counts)
            returned, counted = self._function(iterator, tf.constant(count, tf.int32))
            rows = counted.numpy().tolist()
            kept = self._kept.value(returned) if rows else None
            return len(rows)

        with _watched(self._progress, self._renew):
            batches.give(take)
        return kept, rows

    def _loop(self, iterator: Any, count: tf.Tensor) -> tuple[Any, tf.Tensor]:
        self._on_trace()
        nothing = self._kept.begin(self._step.structured_outputs)
        batch, _ = _next_of(iterator, self._progress, [] if self._progress is None else [self._progress.reset()])
        rows = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[])

        def goes_on(done: tf.Tensor, batch: Any, kept: Any, rows: Any) -> tf.Tensor:
            return tf.logical_and(done < count, batch.has_value())

        def run(done: tf.Tensor, batch: Any, kept: Any, rows: Any) -> tuple[Any, ...]:
            _, examples, *tensors = device_batches.value_of(iterator, batch)
            outputs = self._step(examples, *tensors)
            kept, rows = self._kept.add(kept, done, outputs), rows.write(done, examples)
            done += 1
            after = tf.nest.flatten(outputs, expand_composites=True)
            # the batch after the last step belongs to the next execution
            batch = tf.cond(
                done < count,
                lambda: _next_of(iterator, self._progress, after)[0],
                lambda: tf.experimental.Optional.empty(batch.element_spec),
            )
            return done, batch, kept, rows

        # One step after another, because collectives of two steps have the same names.
        _, _, kept, rows = tf.while_loop(goes_on, run, (tf.constant(0), batch, nothing, rows), parallel_iterations=1)
        return self._kept.end(kept), rows.stack()


def _watched(progress: Progress | None, renew: Callable[[], None] | None) -> AbstractContextManager[None]:
    return contextlib.nullcontext() if progress is None or renew is None else heartbeat().of(progress, renew)


def _next_of(iterator: Any, progress: Progress | None, after: list[Any]) -> tuple[Any, tf.Tensor]:
    """Return the next batch, an optional, and whether there is one.

    If progress is reported, the batch is requested after the tensors ``after``, and the counter is even again before
    the result is known.
    """
    if progress is None:
        batch = iterator.get_next_as_optional()
        return batch, batch.has_value()
    with tf.control_dependencies(after):
        asked = progress.beat()
    with tf.control_dependencies([asked]):
        batch = iterator.get_next_as_optional()
        is_there = batch.has_value()
    with tf.control_dependencies([is_there]):
        came = progress.beat()
    with tf.control_dependencies([came]):
        return batch, tf.identity(is_there)
