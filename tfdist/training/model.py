"""The model that trains in a tfdist scope: its train, test and predict functions, over replicas.

Keras builds these functions in methods that it lets models override (`make_train_function` and its sisters). A model that
calls the strategy is given its own, as attributes of that one object; its class is not touched.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_model, tf_strategies
from tfdist.errors import UnsupportedError
from tfdist.training import callbacks, layers, losses, metrics, optimizers, saving, step
from tfdist.training.data import Batch, Input
from tfdist.training.workers import Workers

_untraced = tf.autograph.experimental.do_not_convert


def adopt(model: keras.Model, strategy: tf.distribute.Strategy, workers: Workers) -> None:
    """Let this model train over the strategy's replicas. Adopting a model again does nothing."""
    own = vars(model)
    if own.get("_tfdist_strategy") is strategy:
        return
    own["_tfdist_strategy"] = strategy
    for name, function in (
        ("_maybe_symbolic_build", functools.partial(_build, model)),
        ("make_train_function", functools.partial(_make_train_function, model, strategy, workers)),
        ("make_test_function", functools.partial(_make_test_function, model, strategy, workers)),
        ("make_predict_function", functools.partial(_make_predict_function, model, strategy, workers)),
        # The step's logs are those of all replicas already.
        ("_get_metrics_result_or_logs", lambda logs: logs or type(model)._get_metrics_result_or_logs(model, logs)),
    ):
        own[name] = function
    saving.adopt(model, workers)


def _build(model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
    """Build what is not built from shapes and dtypes; no batch is taken from the input."""
    if keras_model.is_built(model):
        return
    if iterator is not None:
        data_batch = keras_model.input_of(iterator).element_spec
    keras_model.symbolic_build(model, data_batch)


def _make_train_function(model: keras.Model, strategy: Any, workers: Workers, force: bool = False) -> Any:
    callbacks.adapt(model, strategy, workers, training=True)
    if model.train_function is None or force:
        model.train_function = _function(model, strategy, model.train_step, training=True)
    return model.train_function


def _make_test_function(model: keras.Model, strategy: Any, workers: Workers, force: bool = False) -> Any:
    callbacks.adapt(model, strategy, workers, training=False)
    if model.test_function is None or force:
        model.test_function = _function(model, strategy, model.test_step, training=False)
    return model.test_function


def _make_predict_function(model: keras.Model, strategy: Any, workers: Workers, force: bool = False) -> Any:
    callbacks.adapt(model, strategy, workers, training=False)
    if model.predict_function is None or force:
        model.predict_function = _predict_function(model, strategy)
    return model.predict_function


def _function(model: keras.Model, strategy: Any, user_step: Callable[[Any], Any], *, training: bool) -> Any:
    """Return the function that Keras calls with an iterator, and that runs `steps_per_execution` steps."""
    _refuse_xla(model, strategy)
    replicas = strategy.extended._num_replicas_in_sync
    for optimizer in keras_model.optimizers(model) if training else ():
        optimizers.adapt(optimizer, strategy)

    @_untraced
    def replica_step(data: Any, rows: Any, whole: bool) -> Any:
        layers.adapt(model)
        metrics.adapt(model)
        container = keras_model.compiled_losses(model)
        if container is not None:
            losses.adapt(container)
        if whole:
            rows = step.rows_of(data)
            data = step.slice_rows(data, *step.bounds(rows, tf_strategies.replica_index(), replicas))
        with step.Step(data=data, global_rows=rows, replicas=replicas) as current:
            logs = user_step(data)
            return metrics.synchronise(model, logs, current, training=training)

    @_untraced
    def one_step(data: Any, rows: Any, whole: bool) -> Any:
        logs = strategy.run(replica_step, args=(data, rows, whole))
        return tf_strategies.local_values(strategy, logs)[0]

    if not model.run_eagerly:
        one_step = tf.function(one_step, reduce_retracing=True)

    def function(iterator: Iterator[Any]) -> Any:
        logs = None
        for _, element in zip(range(model.steps_per_execution), iterator, strict=False):
            logs = one_step(*_arguments(element, whole=not isinstance(iterator, tf.distribute.DistributedIterator)))
        if logs is None:
            raise StopIteration
        return logs

    return function


def _arguments(element: Any, *, whole: bool) -> tuple[Any, Any, bool]:
    """Return (data, rows of all replicas or None, whether data is a whole batch) for what an iterator gave."""
    if isinstance(element, Batch):
        return element.data, element.rows, False
    return _tensors(element), None, whole


def _tensors(element: Any) -> Any:
    """Return the nest with arrays as tensors, so that new values do not trace the step again."""
    keep = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor, tf.distribute.DistributedValues, type(None))
    return tf.nest.map_structure(
        lambda leaf: leaf if isinstance(leaf, keep) else tf.convert_to_tensor(leaf), element, expand_composites=False
    )


def _predict_function(model: keras.Model, strategy: Any) -> Any:
    """Return the function that Keras calls with a list of batches, and that returns all rows in order."""
    _refuse_xla(model, strategy)
    replicas = strategy.extended._num_replicas_in_sync

    @_untraced
    def replica_step(data: Any, whole: bool) -> Any:
        if whole:
            rows = step.rows_of(data)
            data = step.slice_rows(data, *step.bounds(rows, tf_strategies.replica_index(), replicas))
        with step.Step(data=data, global_rows=step.rows_of(data), replicas=replicas):
            return model.predict_step(data)

    @_untraced
    def one_step(data: Any, whole: bool) -> Any:
        outputs = strategy.run(replica_step, args=(data, whole))
        return tf_strategies.rows_of_all_replicas(strategy, outputs)

    if not model.run_eagerly:
        one_step = tf.function(one_step, reduce_retracing=True)

    def function(batches: list[Any]) -> Any:
        outputs = []
        for element in batches:
            data, _, whole = _arguments(element, whole=True)
            outputs.append(one_step(data, whole))
        return outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *outputs)

    return function


def _refuse_xla(model: keras.Model, strategy: Any) -> None:
    if model.jit_compile:
        raise UnsupportedError(
            f"jit_compile is True under {type(strategy).__name__}; XLA compiles the program of one device, and a step that "
            "reduces over replicas is not one. Pass jit_compile=False or leave it at 'auto' in model.compile()."
        )
