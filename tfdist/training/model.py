"""The model that trains in a tfdist scope: its train, test and predict functions, over replicas.

Keras builds these functions in methods that it lets models override (`make_train_function` and its sisters). A model
that calls the strategy is given its own, as attributes of that one object; its class is not touched.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_model, tf_strategies
from tfdist.errors import ConfigError, TfdistError, UnsupportedError
from tfdist.training import callbacks, layers, losses, metrics, optimizers, saving, standby, step
from tfdist.training.data import Batch, Layout
from tfdist.training.pulse import Phase, pulse
from tfdist.training.workers import Workers

_untraced = tf.autograph.experimental.do_not_convert


def adopt(model: keras.Model, strategy: tf.distribute.Strategy, workers: Workers) -> None:
    """Let this model train over the strategy's replicas. Adopting a model again does nothing."""
    if not keras_model.mark(model, strategy):
        return
    keras_model.override(
        model,
        build=functools.partial(build, model),
        make_function=functools.partial(_function, model, strategy, workers),
        make_predict_function=functools.partial(_predict_function, model, strategy, workers),
        before=functools.partial(_before, model, workers),
        settle=_between,
    )
    saving.adopt(model, workers)


def _before(model: keras.Model, workers: Workers, training: bool) -> None:
    """Keras is about to train, test or predict, and has not told its callbacks that anything begins."""
    standby.stand_by(model, training=training)
    callbacks.adapt(model, workers, training)


def _between(logs: dict[str, Any]) -> dict[str, Any]:
    """An epoch or an evaluation is over: what callbacks do now may take any time."""
    pulse().phase(Phase.BETWEEN)
    watch = pulse().stopwatch
    if watch is not None:
        watch.pauses()
    return logs


def build(model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
    """Build what is not built from shapes and dtypes; no batch is taken from the input."""
    if keras_model.is_built(model):
        return
    if iterator is not None:
        data_batch = keras_model.input_of(iterator).element_spec
    try:
        keras_model.symbolic_build(model, data_batch)
    except RuntimeError as error:  # Keras' advice on building models, with our message quoted in it
        if isinstance(error.__context__, TfdistError):
            raise error.__context__ from None
        raise


def _function(model: keras.Model, strategy: Any, workers: Workers, user_step: Callable[[Any], Any]) -> Any:
    """Return the function that Keras calls with an iterator, and that runs `steps_per_execution` steps."""
    refuse_xla(model, strategy)
    metrics.require_scope(model, strategy)
    training = user_step == model.train_step
    weighs_loss = training and not keras_model.has_own_train_step(model)
    unseeded = keras_model.global_seed_generator()
    if training:
        require_scope(model, strategy)
    for optimizer in keras_model.optimizers(model) if training else ():
        optimizers.adapt(optimizer, strategy)

    @_untraced
    def replica_step(data: Any, rows: tf.Tensor, global_rows: tf.Tensor | None) -> Any:
        keras_model.use_global_seed_generator(unseeded)
        layers.adapt(model, unseeded)
        metrics.adapt(model)
        container = keras_model.compiled_losses(model)
        if container is not None:
            losses.adapt(container)
        before = metrics.snapshot(model)
        with step.Step(rows=rows, global_rows=global_rows, weighs_loss=weighs_loss) as current:
            logs = user_step(data)
            return metrics.synchronise(model, logs, before, current, training=training)

    def collect(logs: Any) -> Any:
        return tf_strategies.first_local_value(logs)

    return _Steps(model, strategy, _Replicated(model, strategy, workers, replica_step, collect), training=training)


def _predict_function(model: keras.Model, strategy: Any, workers: Workers) -> Any:
    """Return the function that Keras calls with a list of batches, and that returns all rows in order."""
    refuse_xla(model, strategy)

    @_untraced
    def replica_step(data: Any, rows: tf.Tensor, global_rows: tf.Tensor | None) -> Any:
        del global_rows  # nothing is summed in a prediction
        with step.Step(rows=rows, global_rows=rows):
            outputs = model.predict_step(data)
            # Rows that were computed for nothing are dropped; how many rows an example gives is the model's affair.
            return step.slice_rows(outputs, tf.constant(0), tf.where(rows > 0, tf.int32.max, 0))

    collect = functools.partial(tf_strategies.rows_of_all_replicas, strategy)
    run = _Replicated(model, strategy, workers, replica_step, collect)

    def function(batches: list[Any]) -> Any:
        pulse().begin()
        try:
            outputs = [run(element, whole=True) for element in batches]
        finally:
            pulse().end()
        return (
            outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *outputs)
        )

    return function


class _Steps:
    """What Keras calls with an iterator: `steps_per_execution` steps; the logs of the last one are returned.

    Args:
        model: says how many.
        strategy: runs them.
        run: runs one on a batch.
        training: whether they are of `fit`.
    """

    def __init__(self, model: keras.Model, strategy: Any, run: "_Replicated", *, training: bool) -> None:
        self._model = model
        self._strategy = strategy
        self._run = run
        self._training = training
        #: makes the step for batches of a layout, and runs nothing
        self.trace = run.trace

    def __call__(self, iterator: Iterator[Any]) -> Any:
        logs = None
        batches = iter(iterator)
        whole = not isinstance(iterator, tf.distribute.DistributedIterator)
        watch = pulse().stopwatch if self._training else None
        pulse().begin()
        if watch is not None:
            watch.begins()
        try:
            for _ in range(self._model.steps_per_execution):
                pulse().phase(Phase.INPUT)
                element = next(batches, None)
                if element is None:
                    break
                pulse().phase(Phase.STEPPING)
                logs = self._run(element, whole=whole)
                if watch is not None:
                    watch.trained(_examples(element, whole=whole), tf_strategies.replica_count(self._strategy))
        finally:
            pulse().end()
        if logs is None:
            raise StopIteration
        return logs


class _Replicated:
    """A function of one replica's batch, run on every replica, traced once for each layout of the input.

    Args:
        model: decides whether to trace at all.
        strategy: runs it.
        workers: how long they may wait for each other.
        replica_step: takes a replica's data, its number of examples, and that of all replicas (or None).
        collect: makes of the per-replica results what is returned.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        workers: Workers,
        replica_step: Callable[..., Any],
        collect: Callable[..., Any],
    ) -> None:
        self._workers = workers
        self._model = model
        self._strategy = strategy
        self._replica_step = replica_step
        self._collect = collect
        self._traced: dict[str, Any] = {}
        self._traced_free = self._trace(self._free, reduce_retracing=True)

    def __call__(self, element: Any, *, whole: bool) -> Any:
        """Run one step on a `Batch`, on a whole batch of tensors or arrays, or on per-replica values."""
        with self._workers.waiting("a step"):
            if not isinstance(element, Batch):
                found = self._traced_free(tensors(element), whole)
            else:
                found = self._of(element.layout)(element.rows, *element.tensors)
        pulse().phase(Phase.STEPPING)
        return found

    def trace(self, layout: Layout) -> None:
        """Make the function for batches of this layout, which is not run."""
        if not self._model.run_eagerly:
            self._of(layout).get_concrete_function()

    def _of(self, layout: Layout) -> Any:
        """Return the function for this layout, which is traced when it is called first."""
        if layout.key not in self._traced:
            signature = [tf.TensorSpec([], tf.int32), *layout.signature]
            packed = functools.partial(self._packed, layout)
            self._traced[layout.key] = self._trace(packed, input_signature=signature)
        return self._traced[layout.key]

    def _trace(self, function: Callable[..., Any], **options: Any) -> Any:
        return function if self._model.run_eagerly else tf.function(_untraced(function), **options)

    def _packed(self, layout: Layout, global_rows: tf.Tensor, *tensors: Any) -> Any:
        self._note_tracing()
        rows, data = layout.pack(tensors)
        return self._collect(self._strategy.run(self._replica_step, args=(data, rows, global_rows)))

    def _note_tracing(self) -> None:
        if not self._model.run_eagerly:
            pulse().tracing()

    def _free(self, data: Any, whole: bool) -> Any:
        self._note_tracing()
        replica_step = _untraced(self._on_own_part if whole else self._on_own_data)
        return self._collect(self._strategy.run(replica_step, args=(data,)))

    def _on_own_data(self, data: Any) -> Any:
        """Run on a batch that was distributed by other means; the others are asked how many examples they have."""
        return self._replica_step(data, step.rows_of(data), None)

    def _on_own_part(self, data: Any) -> Any:
        """Run on this replica's part of a batch that every replica was given whole."""
        rows, part = step.part_of(data, tf_strategies.replica_index(), tf_strategies.replica_count(self._strategy))
        return self._replica_step(part, rows, step.rows_of(data))


def _examples(element: Any, *, whole: bool) -> int:
    """Return how many examples all replicas have in a step; 0 where workers were given theirs by other means."""
    if isinstance(element, Batch):
        return int(element.rows)
    return int(step.rows_of(tensors(element))) if whole else 0


def tensors(element: Any) -> Any:
    """Return the nest with arrays as tensors, so that new values do not trace the step again."""
    keep = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor, tf.distribute.DistributedValues, type(None))
    return tf.nest.map_structure(
        lambda leaf: leaf if isinstance(leaf, keep) else tf.convert_to_tensor(leaf), element, expand_composites=False
    )


def require_scope(model: keras.Model, strategy: Any) -> None:
    """Raise if a weight that is trained was created outside the scope: replicas would wait for each other."""
    for variable in model.trainable_weights:
        if not tf_strategies.created_under(variable.value, strategy):
            raise ConfigError(
                f"the weight {variable.path!r} was created outside the scope of {type(strategy).__name__}; it must be "
                "created inside, so that it exists on every replica. Build every layer that trains under "
                "`with strategy.scope():`, or freeze it (trainable=False)."
            )


def refuse_xla(model: keras.Model, strategy: Any) -> None:
    """Raise if the model is to be compiled by XLA."""
    if model.jit_compile:
        raise UnsupportedError(
            f"jit_compile is True under {type(strategy).__name__}; XLA compiles the program of one device, and a step "
            "that reduces over replicas is not one. Pass jit_compile=False or leave it at 'auto' in model.compile()."
        )
