"""The train, test and predict functions, over replicas, of a model that trains in a tfdist scope.

Keras builds these functions in methods that models may override, such as `make_train_function`. A model that
calls the strategy gets its own methods, as attributes of that one object; its class is not touched.
"""

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.compat.tensorflow.steps.traced_call import TracedCall, garbage_kept
from tfdist.gradients.reduction.reducer import ReducesItself
from tfdist.gradients.sharding import sharded_slots
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training import chief_saving, keras_loop, local_steps, step_timestamps, worker_callbacks
from tfdist.training.checks import equal_replicas, mixed_predictions, step_probe
from tfdist.training.epoch import Batch, Epoch, Layout, Place, flat
from tfdist.training.execution import Execution, InputError, Last, OneStep, Rows
from tfdist.training.global_batches import Input
from tfdist.training.keras_loop import Predictions, Steps
from tfdist.training.replica import (
    batch_rows,
    current_step,
    replica_layers,
    replica_metrics,
    replica_optimizers,
    replica_step,
    xla_step,
)

_untraced = tf.autograph.experimental.do_not_convert


def adopt(model: keras.Model, strategy: tf.distribute.Strategy, workers: Workers) -> None:
    """Let this model train over the strategy's replicas, once."""
    if not keras_trainer.mark(model, strategy):
        return
    keras_trainer.override(
        model,
        build=functools.partial(_build, model, strategy),
        make_function=functools.partial(_function, model, strategy, workers),
        make_predict_function=functools.partial(_predict_function, model, strategy, workers),
        before=functools.partial(_before, model, strategy, workers),
        settle=functools.partial(_between, model),
    )
    chief_saving.adopt(model, workers, functools.partial(sharded_slots.gathering, model))
    local_steps.adopt(model, strategy, workers)


def _before(model: keras.Model, strategy: Any, workers: Workers, training: bool) -> None:
    """Prepare a call of Keras, before its callbacks begin."""
    keras_loop.require_no_other_distribution(strategy)
    replica_layers.require_no_state_of_rows(model)
    strategy.ready(model)
    stand_by(model, training=training)
    local = local_steps.of(model)
    if local is not None:
        local.begins() if training else local.show()
    if training:
        step_probe.warn_of_parts(model, workers, strategy.normalizes_by)
        step_clock().training_begins()
    worker_callbacks.adapt(model, workers, training)


def stand_by(model: keras.Model, *, training: bool) -> None:
    """If this process is in reserve, wait until it takes the place of another; otherwise do nothing.

    `fit` calls this after all preparations, before its callbacks begin. Of the remaining work, making the step takes
    the longest, so the step is made here.
    """

    def make_step() -> None:
        fit = keras_epochs.running_fit(model)
        if not training or fit is None:  # a user's own `fit`
            return
        function = keras_trainer.train_function(model)
        given = keras_trainer.input_of(fit.epoch_iterator)
        source = function.source if isinstance(function, Steps) else None
        if isinstance(source, _ReplicaSteps) and isinstance(given, Input):
            source.make(given)

    step_clock().stand_by(make_step)


def _between(model: keras.Model, logs: dict[str, Any]) -> dict[str, Any]:
    """End an epoch or an evaluation: the following callbacks do not count as training time."""
    local = local_steps.of(model)
    logs = logs if local is None else local.epoch_logs(logs)
    step_clock().epoch_ends()
    return logs


def _build(model: keras.Model, strategy: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Build the unbuilt parts of a model, and let the strategy examine new weights."""
    if not keras_trainer.is_built(model):
        strategy.before_build(model)
        keras_loop.build(model, iterator, data_batch)
        strategy.ready(model)


def _function(model: keras.Model, strategy: Any, workers: Workers, user_step: Callable[[Any], Any]) -> Any:
    """Return the function that Keras calls with an iterator, which runs `steps_per_execution` steps."""
    replica_metrics.require_scope(model, strategy)
    training = user_step == model.train_step
    unseeded = keras_trainer.global_seed_generator()
    if training:
        keras_loop.require_scope(model.trainable_weights, strategy)
    for optimizer in keras_trainer.optimizers(model) if training else ():
        replica_optimizers.adapt(optimizer, strategy)

    own = strategy.own_step(model, "train" if training else "test", unseeded)
    replicas = tf_strategies.replica_count(strategy) if own is None else 1  # the strategy's own step is not tried
    tried = step_probe.Probe(
        model, strategy, workers, user_step, unseeded, replicas=replicas, training=training, gathers=True
    )

    on_replica = replica_step.ReplicaStep(model, user_step, unseeded, training=training, is_compiled=model.jit_compile)

    @_untraced
    def run_on_replica(data: Any, rows: tf.Tensor, global_rows: tf.Tensor | None) -> Any:
        together = None if services(strategy).is_apart else global_rows  # if replicas are apart, each adds up its own

        def run(data: Any) -> Any:
            sink = replica_step.OwnVariables(model, training=training)
            with batch_rows.size_explained(data, replicas):
                return on_replica(data, sink, rows=rows, global_rows=together, rules=tried.rules)

        is_stamped = training and step_timestamps.can_stamp() and step_timestamps.is_first_replica()
        return step_timestamps.stamped(run, data) if is_stamped else run(data)

    collect = tf_strategies.first_local_value
    run = (
        _Replicated(model, strategy, workers, run_on_replica, collect)
        if own is None
        else _OfSize(model, strategy, workers, own, collect)
    )
    return Steps(model, _ReplicaSteps(model, strategy, run, tried, training=training))


def _predict_function(model: keras.Model, strategy: Any, workers: Workers) -> Any:
    """Return the function that Keras calls with a list of batches, which returns all rows in order."""
    unseeded = keras_trainer.global_seed_generator()

    @_untraced
    def run_on_replica(data: Any, rows: tf.Tensor, global_rows: tf.Tensor | None) -> Any:
        del global_rows  # a prediction sums nothing
        return replica_step.predict(model, unseeded, data, current_step.Step(rows=rows, global_rows=rows))

    collect = functools.partial(tf_strategies.rows_of_all_replicas, strategy)
    own = strategy.own_step(model, "predict", unseeded)
    run = (
        _Replicated(model, strategy, workers, run_on_replica, collect, keeps=Rows)
        if own is None
        else _OfSize(model, strategy, workers, own, collect)
    )
    look = mixed_predictions.Look(model, strategy, workers, is_due=own is None)
    return Predictions(functools.partial(_rows_of, model, run, look), contextlib.nullcontext)


def _rows_of(
    model: keras.Model, run: "_Replicated", look: Callable[[Callable[[], Layout]], None], given: list[Any]
) -> list[Any]:
    """Return the rows of each batch, or of the next batches of an epoch; fewer at its end."""
    if not isinstance(given[0], Place):
        look(lambda: Layout.of(((tf.constant(0), keras_loop.tensors(given[0])),)))
        return [run(element, whole=True) for element in given]
    batches, left = given[0].epoch, len(given)
    look(lambda: batches.layout)
    outputs = []
    while left:
        count = 0 if model.run_eagerly else batches.free(left)
        if count > 1 and run.can_run_several(batches.layout):
            rows, examples = run.several(batches, count)
            taken = len(examples)
        else:
            count, rows, taken = 1, None, 0
            step_clock().enter(Phase.INPUT)
            if (batch := batches.take()) is not None:
                rows, taken = run(batch, whole=True), 1
        if taken:
            outputs.append(rows)
        if taken < count:
            break
        left -= taken
    return outputs


class _ReplicaSteps:
    """The steps of all replicas, as a `StepSource`."""

    def __init__(
        self, model: keras.Model, strategy: Any, run: "_Replicated", tried: step_probe.Probe, *, training: bool
    ) -> None:
        self.training = training
        self.run = run
        self._model = model
        self._strategy = strategy
        self.tried = tried
        self._epoch: weakref.ref[Any] | None = None
        self._comparison = equal_replicas.Comparison(model, strategy, run.workers, training=training)
        self._seconds = 0.0  # of all steps

    @contextlib.contextmanager
    def running(self, iterator: Any) -> Iterator[None]:
        """Renew the reduction when an epoch begins, measure the time of steps, and compare replicas after the first."""
        if self.training and (self._epoch is None or self._epoch() is not iterator):
            self._epoch = weakref.ref(iterator)
            choosing = [one for one in keras_trainer.optimizers(self._model) if isinstance(one, ReducesItself)]
            renewed = [one.renew_reduction(self.run.workers, self._seconds) for one in choosing]
            if any(renewed):
                self.run.forget()
        began = time.monotonic()
        try:
            yield
            self._comparison.after_steps(iterator)
        finally:
            self._seconds += time.monotonic() - began

    def several(self, batches: Epoch, left: int) -> tuple[int, int, Any] | None:
        """Run steps in one graph; return None if the model runs eagerly, the step is untried, or Python must check."""
        if self._model.run_eagerly or self.tried.is_due or not self.run.runs_several:
            return None
        count = local_steps.left(self._model, batches.free(left), training=self.training)
        if count == 1:
            with self._stepping() as done:  # the step may be traced here, by the services of its synchronization
                if not self.run.can_run_next(batches.layout):
                    return None
                last, taken = self.run.next_of(batches)
            done(taken)
            return count, taken, last
        if not count:
            return None
        with self._stepping() as done:
            last, rows = self.run.several(batches, count)
        done(len(rows))
        self._note_trained(rows)
        return count, len(rows), last

    def step(self, element: Any, *, whole: bool) -> Any:
        """Run one step on every replica; the first step is tried before it runs."""
        if self.tried.is_due:
            if not self.tried.look(_slices(element, self._strategy, whole=whole)):
                self.run.forget()
            self.tried.warn()
        with self._stepping() as done:
            logs = self.run(element, whole=whole)
        done(1)
        if step_clock().counts_examples:
            self._note_trained([_examples(element, self._strategy, whole=whole)])
        return logs

    def make(self, given: Input) -> None:
        """Make the function of a step on this input without running a step."""
        with self._stepping():
            self.run.make(given.layout, has_one_graph=given.has_one_graph)

    def _stepping(self) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        return local_steps.stepping(self._model, self.run.forget, self.tried.rules, training=self.training)

    def drain(self) -> None:
        """Do nothing: no step is under way between two calls."""

    def _note_trained(self, rows: Sequence[int]) -> None:
        clock = step_clock()
        if self.training and clock.counts_examples:
            for examples in rows:
                clock.trained(examples, tf_strategies.replica_count(self._strategy))


class _Replicated:
    """A function of one replica's batch, run on every replica, traced once for each layout of the input."""

    #: whether one graph may run several steps
    runs_several = True

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        workers: Workers,
        run_on_replica: Callable[..., Any],
        collect: Callable[..., Any],
        *,
        keeps: Callable[[], Last | Rows] = Last,
    ) -> None:
        self._keeps = keeps
        self.workers = workers
        self._model = model
        self._strategy = strategy
        self._run_on_replica = run_on_replica
        self._collect = collect
        self._traced: dict[str, Any] = {}
        self._executions: dict[str, Execution] = {}
        self._single: dict[str, OneStep] = {}
        self._traced_free = self._trace(self._free, reduce_retracing=True)

    def __call__(self, element: Any, *, whole: bool) -> Any:
        """Run one step on a `Batch`, on a whole batch of tensors or arrays, or on per-replica values."""
        step_clock().enter(Phase.PYTHON if self._model.run_eagerly else Phase.EXECUTE)
        with self.workers.waiting("a step"), xla_step.named_errors():
            if not isinstance(element, Batch):
                return self._traced_free(self._whole(element) if whole else keras_loop.tensors(element), whole)
            if element.has_one_graph and self.can_run_next(element.layout):
                return self._one_step(element.layout).run_on(element)
            step, given = self._of(element.layout), (element.rows, *element.tensors)
            if self._model.run_eagerly or tf.config.functions_run_eagerly():
                return step(*given)
            return step.of_flat()(tf.nest.flatten(given, expand_composites=True))

    def _whole(self, element: Any) -> Any:
        """Return a whole batch as tensors; each replica computes its part."""
        data = keras_loop.batch_of(element, self._strategy)
        if tf_strategies.replica_count(self._strategy) > 1:
            batch_rows.require_alike(data)
        return data

    def can_run_several(self, layout: Layout) -> bool:
        """Return True if one graph can keep the rows of several steps on this layout."""
        return Rows.can_keep(self._of(layout).get_concrete_function().structured_outputs)

    def can_run_next(self, layout: Layout) -> bool:
        """Return True if no observer divides steps into phases, and this process has one replica.

        TensorFlow cannot run a conditional step over several devices: it leaves inputs of the step without a value.
        """
        is_eager = self._model.run_eagerly or tf.config.functions_run_eagerly()
        if layout.is_cut or is_eager or step_clock().divides_steps:
            return False
        return layout.key in self._single or OneStep.can_run(self._of(layout).get_concrete_function())

    def next_of(self, batches: Epoch) -> tuple[Any, int]:
        """Run a step on the next batch, which its graph takes; return its logs, and 1, or 0 if the input has ended.

        The time between two steps is half of that with a batch from Python.
        """
        try:
            with self.workers.waiting("a step"), xla_step.named_errors():
                step = self._one_step(batches.layout)
                step_clock().enter(Phase.EXECUTE)
                return step.run(batches)
        except InputError as failed:  # the other workers may continue together with this one
            batches.fail(failed.error)

    def _one_step(self, layout: Layout) -> OneStep:
        if layout.key not in self._single:
            step = self._of(layout).get_concrete_function()
            self._single[layout.key] = OneStep(step, layout, renew=self._renew, on_trace=self._note_tracing)
        return self._single[layout.key]

    def several(self, batches: Epoch, count: int) -> tuple[Any, list[int]]:
        """Run steps on the next batches in one graph; return their kept outputs, and the number of examples in each.

        If the input ends, fewer than ``count`` steps run.
        """
        with self.workers.waiting("a step"), xla_step.named_errors():
            execution = self._execution_of(batches.layout)
            step_clock().enter(Phase.EXECUTE)
            return execution.run(batches, count)

    def _execution_of(self, layout: Layout) -> Execution:
        """Return the graph of several steps on this layout; it traces the step inside."""
        if layout.key not in self._executions:
            self._executions[layout.key] = Execution(
                self._of(layout).get_concrete_function(), self._keeps(), renew=self._renew, on_trace=self._note_tracing
            )
        return self._executions[layout.key]

    @property
    def _renew(self) -> Callable[[], None] | None:
        """The function that records progress of a graph that takes its batches; None if progress is not read."""
        is_watched = step_clock().reporter is not None or self.workers.count > 1
        return self.workers.renew if is_watched else None

    def forget(self) -> None:
        """Drop functions that were traced before the rules of the step were known."""
        self._traced.clear()
        self._executions.clear()
        self._single.clear()
        self._traced_free = self._trace(self._free, reduce_retracing=True)

    def make(self, layout: Layout, *, has_one_graph: bool) -> None:
        """Make the function for a layout without running a step."""
        if self._model.run_eagerly:
            return
        self._of(layout).get_concrete_function()
        if has_one_graph and self._model.steps_per_execution == 1 and self.can_run_next(layout):
            self._one_step(layout).prepare()

    def _of(self, layout: Layout) -> Any:
        """Return the function for this layout, which its first call traces."""
        if layout.key not in self._traced:
            signature = [tf.TensorSpec([], tf.int32), *layout.signature]
            packed = self._trace(functools.partial(self._packed, layout), input_signature=signature)
            self._traced[layout.key] = packed if self._model.run_eagerly else TracedCall(packed)
        return self._traced[layout.key]

    def _trace(self, function: Callable[..., Any], **options: Any) -> Any:
        return function if self._model.run_eagerly else tf.function(_untraced(function), **options)

    def _packed(self, layout: Layout, global_rows: tf.Tensor, *tensors: Any) -> Any:
        self._note_tracing()
        rows, data = layout.pack(tensors, tf_strategies.slices_of_replicas(self._strategy.extended))
        return self._collect(self._strategy.run(self._run_on_replica, args=(data, rows, global_rows)))

    def _note_tracing(self) -> None:
        if not self._model.run_eagerly:
            step_clock().enter(Phase.TRACE)

    def _free(self, data: Any, whole: bool) -> Any:
        self._note_tracing()
        run = _untraced(self._on_own_part if whole else self._on_own_data)
        return self._collect(self._strategy.run(run, args=(data,)))

    def _on_own_data(self, data: Any) -> Any:
        """Run on a batch that tfdist did not distribute; replicas add up their numbers of examples."""
        data = batch_rows.with_whole(data, self._strategy.whole_inputs)
        return self._run_on_replica(data, batch_rows.rows_of(data), None)

    def _on_own_part(self, data: Any) -> Any:
        """Run on this replica's part of a batch that every replica received whole."""
        rows, part = batch_rows.part_of(data, tf_strategies.replica_index(), self._strategy.share.shares)
        return self._run_on_replica(part, rows, batch_rows.rows_of(data))


class _OfSize(_Replicated):
    """A function of one replica's batch, traced for each number of examples and each shape.

    What it runs takes a replica's data, and the number of examples of all replicas as Python's.
    """

    runs_several = False

    def __call__(self, element: Any, *, whole: bool) -> Any:
        step_clock().enter(Phase.EXECUTE)
        with self.workers.waiting("a step"):
            if isinstance(element, Batch):
                _, data = element.layout.slices(element.tensors)[0]
                batch_rows.require_alike(data)  # micro-batches are cut from a batch that is in one part, too
                count, key = int(element.rows), element.layout.key
            else:
                keras_loop.require_whole(whole)
                data = keras_loop.batch_of(element, self._strategy)
                batch_rows.require_alike(data)
                count, key = int(batch_rows.rows_of(data)), "whole"
                ((_, data),) = batch_rows.parts_of(data, self._strategy.share)
            leaves = flat((data,))
            key = f"{key} of {count}: {[tf.type_spec_from_value(leaf) for leaf in leaves]}"
            if key not in self._traced:
                function = tf.function(_untraced(functools.partial(self._of_size, data, count)))
                with garbage_kept():
                    self._traced[key] = function.get_concrete_function(*leaves)
            return self._traced[key](*leaves)

    def can_run_several(self, layout: Layout) -> bool:
        return False

    def make(self, layout: Layout, *, has_one_graph: bool) -> None:
        """Make nothing: the trace depends on the number of examples."""

    def _of_size(self, structure: Any, count: int, *leaves: Any) -> Any:
        self._note_tracing()
        given = iter(leaves)
        shape = tf.nest.flatten(structure, expand_composites=False)
        data = tf.nest.pack_sequence_as(
            structure, [None if leaf is None else next(given) for leaf in shape], expand_composites=False
        )
        return self._collect(self._strategy.run(self._run_on_replica, args=(data, count)))


def _slices(element: Any, strategy: Any, *, whole: bool) -> Sequence[tuple[Any, Any]]:
    """Return each local replica's number of examples and its data."""
    if isinstance(element, Batch):
        return element.layout.slices(element.tensors)
    data = keras_loop.batch_of(element if whole else tf_strategies.first_local_value(element), strategy)
    return [(batch_rows.rows_of(data), data)]


def _examples(element: Any, strategy: Any, *, whole: bool) -> int:
    """Return the examples of all replicas in a step; 0 where the input was distributed by other means."""
    if isinstance(element, Batch):
        return int(element.rows)
    return int(batch_rows.rows_of(keras_loop.batch_of(element, strategy))) if whole else 0
