"""Keras' trainer: finding the model that is training, building it, and its private state.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/trainer.py`, `keras/src/trainers/trainer.py`):

- A strategy is told of variables, datasets and scopes, never of the model they are for: `TFEpochIterator` passes the
  dataset
  alone.
  `calling_model` looks for the model in the frames that called the strategy. `test_compat` fails when they move.
- `_maybe_symbolic_build` takes a batch from the input to build the model, and loses it where the input is a generator;
  `_symbolic_build` needs shapes and dtypes only.
- `_compile_loss`, `_compile_metrics`, `_loss_tracker`, `_flatten_layers`, `_seed_generators`,
  `_non_trainable_variables`, `_distribute_strategy`, `_get_metrics_result_or_logs`: state without a public accessor.
"""

import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.random import seed_generator

# From the strategy's method up: (override in tfdist) <- TFEpochIterator.__init__ <- fit, and room for a subclass's
# own fit.
_FRAMES_TO_SEARCH = 8
# From the creation of a variable up, through TensorFlow's stack of creators, to `compile`, which makes the loss's
# tracker.
_FRAMES_OF_A_VARIABLE = 40


def _frames(count: int = _FRAMES_TO_SEARCH) -> Iterator[FrameType]:
    frame = sys._getframe(2)
    for _ in range(count):
        if frame is None or frame.f_back is None:
            return
        frame = frame.f_back
        yield frame


def calling_model(strategy: tf.distribute.Strategy) -> keras.Model | None:
    """Return the Keras model that was created in this strategy's scope and is calling it now, if one is."""
    for frame in _frames():
        candidate = frame.f_locals.get("self")
        # its own dictionary: in a model's __init__ the attribute may not be there yet
        if isinstance(candidate, TensorFlowTrainer) and vars(candidate).get("_distribute_strategy") is strategy:
            return candidate
    return None


def asks_for_shapes() -> bool:
    """Return whether Keras is building a model from the shapes of a batch."""
    return any(frame.f_code.co_name == "_maybe_symbolic_build" for frame in _frames())


def given_callbacks(model: keras.Model) -> list[Any]:
    """Return the callbacks that the user gave to the `fit` of this model that is running, before Keras has met them."""
    for frame in _frames():
        if frame.f_locals.get("self") is model and "callbacks" in frame.f_locals:
            given = frame.f_locals["callbacks"]
            return given.callbacks if isinstance(given, keras.callbacks.CallbackList) else keras.tree.flatten(given)
    return []


def calling_callbacks(model: keras.Model) -> keras.callbacks.CallbackList | None:
    """Return the list of callbacks of the `fit`, `evaluate` or `predict` of this model that is running now."""
    for frame in _frames():
        if frame.f_locals.get("self") is model:
            found = frame.f_locals.get("callbacks")
            if isinstance(found, keras.callbacks.CallbackList):
                return found
    return None


def data_of_calling_step() -> Any:
    """Return the batch of the `train_step` that is applying gradients now, or None in a loop without one.

    An optimizer is told of gradients alone, never of how many examples they are of.
    """
    for frame in _frames():
        if frame.f_code.co_name == "train_step" and isinstance(frame.f_locals.get("self"), TensorFlowTrainer):
            return frame.f_locals.get("data")
    return None


def compiling_model(strategy: tf.distribute.Strategy) -> keras.Model | None:
    """Return the model of this strategy whose `compile` is making a variable now, if one is."""
    for frame in _frames(_FRAMES_OF_A_VARIABLE):
        candidate = frame.f_locals.get("self") if frame.f_code.co_name == "compile" else None
        if isinstance(candidate, TensorFlowTrainer) and vars(candidate).get("_distribute_strategy") is strategy:
            return candidate
    return None


def mark(model: keras.Model, strategy: tf.distribute.Strategy) -> bool:
    """Note that the model trains under the strategy; return whether that is new."""
    own = vars(model)
    new = own.get("_tfdist_strategy") is not strategy
    own["_tfdist_strategy"] = strategy
    if new:  # what was made for one device, or for another strategy, is made again
        model.train_function = model.test_function = model.predict_function = None
    return new


def override(
    model: keras.Model,
    *,
    build: Callable[..., None],
    make_function: Callable[[Callable[..., Any]], Any],
    make_predict_function: Callable[[], Any],
    before: Callable[[bool], None],
    settle: Callable[[dict[str, Any]], dict[str, Any]] = lambda logs: logs,
) -> None:
    """Give one model object its own way to build itself and to make its train, test and predict functions.

    Its class stays as it is, and a subclass's own `make_train_function` is called as before. The logs of a step are
    taken as they are: Keras would read every metric's variables again, each from all workers.

    Args:
        model: the model.
        build: takes the place of `_maybe_symbolic_build`.
        make_function: makes a function over replicas of a `train_step` or `test_step`.
        make_predict_function: makes the one of `predict`.
        before: called when Keras is about to train (True), or to test or predict (False).
        settle: called with a step's logs when those of an epoch or an evaluation are wanted; returns these.
    """
    own = vars(model)
    kind = type(model)

    def make_train(force: bool = False) -> Any:
        before(True)
        return kind.make_train_function(model, force)

    def make_test(force: bool = False) -> Any:
        before(False)
        return kind.make_test_function(model, force)

    def make_predict(force: bool = False) -> Any:
        before(False)
        if kind.make_predict_function is not TensorFlowTrainer.make_predict_function:
            return kind.make_predict_function(model, force)
        if model.predict_function is None or force:
            model.predict_function = make_predict_function()
        return model.predict_function

    own["_maybe_symbolic_build"] = build
    own["_make_function"] = make_function
    own["make_train_function"] = make_train
    own["make_test_function"] = make_test
    own["make_predict_function"] = make_predict

    def epoch_logs(logs: dict[str, Any]) -> dict[str, Any]:
        logs = settle(logs)
        return logs if own.get("_tfdist_logs_are_metrics") else kind._get_metrics_result_or_logs(model, logs)

    own["_get_metrics_result_or_logs"] = epoch_logs


def train_function(model: keras.Model) -> Any:
    """Return the model's train function, which is made if there is none; that Keras is about to train is not said."""
    type(model).make_train_function(model)
    return model.train_function


def note_logs(model: keras.Model, *, are_metrics: bool) -> None:
    """Note whether the logs of the step that is being traced are the model's metrics over all replicas."""
    vars(model)["_tfdist_logs_are_metrics"] = are_metrics


def logs_are_metrics(model: keras.Model) -> bool:
    """Return whether the logs of the step that was traced last are the model's metrics over all replicas."""
    return bool(vars(model).get("_tfdist_logs_are_metrics"))


def initial_epoch(model: keras.Model) -> int:
    """Return the epoch at which a restored backup lets `fit` begin, 0 without one."""
    return int(model._initial_epoch or 0)


def set_initial_epoch(model: keras.Model, epoch: int) -> None:
    """Let `fit` begin at this epoch."""
    model._initial_epoch = epoch


def calling_epoch_iterator() -> TFEpochIterator | None:
    """Return the epoch iterator that is being made and has asked the strategy to distribute its dataset."""
    for frame in _frames():
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, TFEpochIterator):
            return candidate
    return None


def batches_of(epoch_iterator: TFEpochIterator) -> int | None:
    """Return the number of batches in the input as Keras knows it; of arrays it does, although tf.data does not."""
    return epoch_iterator._num_batches


def set_batches(epoch_iterator: TFEpochIterator, batches: int | None) -> None:
    """Let an epoch have this many batches; None lets it run until the input ends.

    Keras counts the batches of the dataset that it was given, which are not the steps where workers read data of
    their own.
    """
    adapter = epoch_iterator.data_adapter
    count = tf.data.UNKNOWN_CARDINALITY if batches is None else batches
    adapter._dataset = adapter._dataset.apply(tf.data.experimental.assert_cardinality(count))
    epoch_iterator._num_batches = batches


def expect_batches(epoch_iterator: TFEpochIterator, batches: int) -> None:
    """Let the epochs that begin from now on have this many batches, of the same dataset."""
    epoch_iterator._num_batches = batches


def wait_for_nothing(epoch_iterator: TFEpochIterator) -> None:
    """Keep an epoch from waiting, at its end, for whatever threads of this process have under way in TensorFlow."""
    vars(epoch_iterator)["tf_sync"] = lambda: None


def symbolic_build(model: keras.Model, spec: Any) -> None:
    """Build the model, its loss, its metrics and its optimizer for batches of this spec (a nest of `tf.TensorSpec`).

    A model with a `train_step` of its own need not be callable (a GAN is two models); it is then left to its first
    step.
    """
    with model.distribute_strategy.scope():
        try:
            model._symbolic_build(data_batch=spec)
        except RuntimeError:
            if type(model).train_step is TensorFlowTrainer.train_step:
                raise


def is_built(model: keras.Model) -> bool:
    """Return whether nothing is left for `symbolic_build` to do."""
    parts = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(layer.built for layer in model._flatten_layers()) and all(p is None or p.built for p in parts)


def layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the model and every layer in it, at any depth."""
    return list(model._flatten_layers())


def seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Return every seed generator that the model's layers draw from."""
    found: list[keras.random.SeedGenerator] = []
    for layer in layers(model):
        found.extend(layer._seed_generators)
    return found


def states(model: keras.Model) -> list[keras.Variable]:
    """Return the float variables that layers may update by themselves in a training step, as moving statistics are.

    Weights that are merely not trained are left out: what a layer declared trainable stays so in this account even when
    the layer is frozen. So are variables that declare an aggregation, which TensorFlow takes at every assignment.
    """
    found: list[keras.Variable] = []
    for layer in layers(model):
        own = layer._non_trainable_variables
        found.extend(v for v in own if tf.as_dtype(v.dtype).is_floating and v.aggregation == "none")
    return found


def persistent_variables(model: keras.Model) -> list[keras.Variable]:
    """Return what training goes on from: weights, the states of seed generators, and the optimizers' variables."""
    seeds = [generator.state for generator in seed_generators(model)]
    slots = [variable for optimizer in optimizers(model) for variable in optimizer.variables]
    unique = {id(variable): variable for variable in [*model.weights, *seeds, *slots]}
    return list(unique.values())


def optimizers(model: keras.Model) -> list[BaseOptimizer]:
    """Return the optimizers that the model and its layers hold, also in lists and dictionaries (as GANs do)."""
    found: dict[int, BaseOptimizer] = {}

    def collect(value: Any) -> None:
        if isinstance(value, BaseOptimizer):
            found.setdefault(id(value), value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)
        elif isinstance(value, dict):
            collect(list(value.values()))

    for layer in layers(model):
        collect([getattr(layer, "optimizer", None), *vars(layer).values()])
    return list(found.values())


def compiled_losses(model: keras.Model) -> Any:
    """Return Keras' container of the losses given to `compile`, or None before it is built."""
    container = model._compile_loss
    return container if container is not None and container.built else None


def metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return every metric that a step of this model may update, containers flattened."""
    found: list[keras.metrics.Metric] = []
    pending = list(model.metrics)
    while pending:
        metric = pending.pop(0)
        found.append(metric)
        pending.extend(getattr(metric, "metrics", None) or metric._metrics)
    return found


def global_seed_generator() -> keras.random.SeedGenerator:
    """Return the generator behind random numbers without a seed; it must be there before a step is traced.

    Making it draws its seed from Python's generator, as layers that are made later do: that is put back.
    """
    before = random.getstate()
    try:
        return seed_generator.global_seed_generator()
    finally:
        random.setstate(before)


def use_global_seed_generator(generator: keras.random.SeedGenerator) -> None:
    """Let this thread draw from the generator: Keras has one for each thread, and so has TensorFlow each replica."""
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)


def has_own_train_step(model: keras.Model) -> bool:
    """Return whether the model trains by another `train_step` than Keras'."""
    return getattr(model.train_step, "__func__", None) is not TensorFlowTrainer.train_step


def metrics_result(model: keras.Model) -> dict[str, Any]:
    """Return the model's metrics as `fit` logs them, from the variables' present values."""
    return dict(model.get_metrics_result())


def input_of(epoch_iterator: Any) -> Any:
    """Return what the strategy made of the dataset of a `TFEpochIterator`."""
    return epoch_iterator._distributed_dataset
