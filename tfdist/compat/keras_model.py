"""Keras' trainer: finding the model that is training, building it, and its private state.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/trainer.py`, `keras/src/trainers/trainer.py`):

- A strategy is told of datasets and scopes, never of the model they are for: `TFEpochIterator` passes the dataset
  alone.
  `calling_model` looks for the model in the frames that called the strategy. `test_compat` fails when they move.
- `_maybe_symbolic_build` takes a batch from the input to build the model, and loses it where the input is a generator;
  `_symbolic_build` needs shapes and dtypes only.
- `_compile_loss`, `_compile_metrics`, `_loss_tracker`, `_flatten_layers`, `_seed_generators`,
  `_non_trainable_variables`, `_distribute_strategy`, `_get_metrics_result_or_logs`: state without a public accessor.
"""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.optimizers.base_optimizer import BaseOptimizer

# From the strategy's method up: (override in tfdist) <- TFEpochIterator.__init__ <- fit, and room for a subclass's
# own fit.
_FRAMES_TO_SEARCH = 8


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe(2)
    for _ in range(_FRAMES_TO_SEARCH):
        if frame is None or frame.f_back is None:
            return
        frame = frame.f_back
        yield frame


def calling_model(strategy: tf.distribute.Strategy) -> keras.Model | None:
    """Return the Keras model that was created in this strategy's scope and is calling it now, if one is."""
    for frame in _frames():
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, TensorFlowTrainer) and candidate._distribute_strategy is strategy:
            return candidate
    return None


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


def mark(model: keras.Model, strategy: tf.distribute.Strategy) -> bool:
    """Note that the model trains under the strategy; return whether that is new."""
    own = vars(model)
    new = own.get("_tfdist_strategy") is not strategy
    own["_tfdist_strategy"] = strategy
    return new


def override(model: keras.Model, *, build: Callable[..., None], **make_functions: Callable[..., Any]) -> None:
    """Give one model object its own way to build itself and to make its train, test and predict functions.

    Its class stays as it is. The logs of a step are taken as they are: Keras would read every metric's variables
    again, each from all workers.
    """
    own = vars(model)
    own["_maybe_symbolic_build"] = build
    own.update(make_functions)
    own["_get_metrics_result_or_logs"] = lambda logs: logs or type(model)._get_metrics_result_or_logs(model, logs)


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


def batches_of(epoch_iterator: TFEpochIterator | None) -> int | None:
    """Return the number of batches in the input as Keras knows it; of arrays it does, although tf.data does not."""
    return None if epoch_iterator is None else epoch_iterator._num_batches


def set_batches(epoch_iterator: TFEpochIterator | None, batches: int | None) -> None:
    """Let an epoch have this many batches; None lets it run until the input ends.

    Keras counts the batches of the dataset that it was given, which are not the steps where workers read data of
    their own.
    """
    if epoch_iterator is not None:
        adapter = epoch_iterator.data_adapter
        count = tf.data.UNKNOWN_CARDINALITY if batches is None else batches
        adapter._dataset = adapter._dataset.apply(tf.data.experimental.assert_cardinality(count))
        epoch_iterator._num_batches = batches


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
    """Return the float variables that layers update by themselves in a training step: moving statistics and the like.

    Frozen layers are left out, and so are weights that are merely not trained: what a layer declared trainable stays
    so in this account even when the layer is frozen.
    """
    found: list[keras.Variable] = []
    for layer in layers(model):
        if layer.trainable:
            found.extend(v for v in layer._non_trainable_variables if tf.as_dtype(v.dtype).is_floating)
    return found


def optimizers(model: keras.Model) -> list[BaseOptimizer]:
    """Return the optimizers that the model holds as attributes: the compiled one first, then others (as GANs have)."""
    found = [model.optimizer] if model.optimizer is not None else []
    held = vars(model).values()
    return found + [value for value in held if isinstance(value, BaseOptimizer) and value is not model.optimizer]


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


def metrics_result(model: keras.Model) -> dict[str, Any]:
    """Return the model's metrics as `fit` logs them, from the variables' present values."""
    return dict(model.get_metrics_result())


def input_of(epoch_iterator: Any) -> Any:
    """Return what the strategy made of the dataset of a `TFEpochIterator`."""
    return epoch_iterator._distributed_dataset
