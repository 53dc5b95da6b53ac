"""The training step of a private model: the sum of the examples' clipped gradients, with noise added once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras import loss as keras_loss
from tfdist.errors import UnsupportedError
from tfdist.privacy import clipped_gradients
from tfdist.training.replica import current_step


@dataclass(frozen=True)
class Noise:
    """The noise that a step adds, and the number that it divides by."""

    clip: float  # the largest norm of an example's gradient
    noise_multiplier: float  # the standard deviation of the noise of the sum, in units of ``clip``
    expected: float  # the expected number of examples of a batch, by which the sum is divided
    key: int  # the key of the random numbers; no file has it


class PrivateStep:
    """A `train_step` for Keras; if there are several replicas, the first one adds the noise before the usual sum.

    Args:
        model: the model that is trained.
        noise: a function that returns the noise settings when the step is traced.
        counter: an integer variable with the number of the step, so that no two steps have the same noise.
    """

    #: no rule of how replicas' results are put together has to be found out
    adds_up_over_replicas = True

    def __init__(self, model: keras.Model, noise: Callable[[], Noise], counter: keras.Variable) -> None:
        self._model, self._noise, self._counter = model, noise, counter

    def __call__(self, data: Any) -> Any:
        model, noise, current = self._model, self._noise(), current_step.current()
        data = keras.utils.unpack_x_y_sample_weight(data)
        _require_losses_of_examples(model)
        rows = _rows(data) if current is None else current.rows
        padded = _with_a_row(data)
        counts = tf.range(_rows(padded)) < rows
        found = clipped_gradients.clipped_sum(model, padded, counts, noise.clip)
        is_first = current is None or current.group.index == 0
        sums = _noisy(found.sums, noise, self._counter) if is_first else found.sums
        self._apply([one / noise.expected for one in sums])
        self._counter.assign(self._counter + 1)
        x, y, weight = tf.nest.map_structure(lambda leaf: None if leaf is None else leaf[:rows], padded)
        losses, outputs = tf.nest.map_structure(lambda leaf: leaf[:rows], (found.losses, found.outputs))
        return self._logs(x, y, outputs, weight, losses, rows)

    def _apply(self, gradients: list[tf.Tensor]) -> None:
        model, current = self._model, current_step.current()
        optimizer = model.optimizer
        if current is not None:
            current.weighted.add(id(optimizer))  # sums of examples add up over replicas
        scale = tf.cast(type(optimizer).scale_loss(optimizer, tf.constant(1.0)), tf.float32)
        weights = model.trainable_variables
        optimizer.apply([tf.cast(g * scale, w.dtype) for g, w in zip(gradients, weights, strict=True)], weights)

    def _logs(self, x: Any, y: Any, outputs: Any, weight: Any, losses: tf.Tensor, rows: tf.Tensor) -> Any:
        tracker = keras_trainer.loss_tracker(self._model)
        tracker.update_state(tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(rows, tf.float32)), rows)
        return self._model.compute_metrics(x, y, outputs, sample_weight=weight)


def _require_losses_of_examples(model: keras.Model) -> None:
    container = keras_trainer.compiled_losses(model)
    for loss in [] if container is None else keras_loss.compiled(container):
        if keras_loss.compares_examples(loss):
            name = getattr(loss, "name", type(loss).__name__)
            raise UnsupportedError(
                f"the loss {name!r} compares the examples of a batch, so no gradient belongs to one alone. Use a loss "
                "that looks at each example by itself.",
                name=str(name),
            )


def _noisy(sums: list[tf.Tensor], noise: Noise, counter: keras.Variable) -> list[tf.Tensor]:
    if not noise.noise_multiplier:
        return sums
    step = tf.cast(tf.convert_to_tensor(counter.value), tf.int64) * len(sums)
    deviation = noise.noise_multiplier * noise.clip
    keys = [tf.stack([tf.constant(noise.key, tf.int64), step + place]) for place in range(len(sums))]
    return [
        total + deviation * tf.random.stateless_normal(tf.shape(total), key, dtype=total.dtype, alg="philox")
        for total, key in zip(sums, keys, strict=True)
    ]


def _rows(data: Any) -> tf.Tensor:
    return tf.shape(_leaves(data)[0])[0]


def _leaves(data: Any) -> list[tf.Tensor]:
    leaves = [leaf for leaf in tf.nest.flatten(data, expand_composites=False) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0:
            raise UnsupportedError(
                f"the batch has a {type(leaf).__name__} of the shape {leaf.shape}; a private step needs dense tensors "
                "with a row for each example. Pad ragged rows to one length, and make sparse ones dense.",
                name="data",
                received=type(leaf).__name__,
            )
    return leaves


def _with_a_row(data: Any) -> Any:
    """Return the batch, with a row of zeros if it is empty: layers and kernels do not support empty batches."""
    missing = tf.cast(_rows(data) == 0, tf.int32)

    def padded(leaf: Any) -> Any:
        if leaf is None:
            return None
        return tf.concat([leaf, tf.zeros(tf.concat([[missing], tf.shape(leaf)[1:]], 0), leaf.dtype)], 0)

    return tf.nest.map_structure(padded, data)
