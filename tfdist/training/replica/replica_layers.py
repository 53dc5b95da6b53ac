"""Layers in a tfdist scope: each replica has its own random numbers, and all replicas the same state."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods, sharded_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.errors import UnsupportedError
from tfdist.training.replica import across, current_step

# An odd constant near 2^32 / golden ratio: multiples of it by small replica numbers lie far apart in every bit range.
_SEED_STRIDE = 0x9E3779B1


def require_no_state_of_rows(model: keras.Model, replicas: int | None = None) -> None:
    """Raise if a layer keeps a row of state for each row of a batch: replicas, or workers, have different rows."""
    if replicas is None:
        replicas = tf_strategies.replica_count(model.distribute_strategy)
    for layer in keras_trainer.layers(model) if replicas > 1 else ():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise UnsupportedError(
                f"the layer {layer.name!r} is stateful: it keeps a row of state for each row of a batch of fixed size, "
                f"and each of the {replicas} replicas has some of the rows. Declare it with stateful=False and an "
                "input without a batch size, or train with one replica."
            )


def adapt(model: keras.Model, unseeded: keras.random.SeedGenerator) -> None:
    """Let replicas draw different random numbers, reproducibly, and synchronized statistics count examples."""
    for generator in [*keras_variables.seed_generators(model), unseeded]:
        layer_methods.override_next(generator, functools.partial(_next, generator))
    for layer in keras_trainer.layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            layer_methods.override_moments(layer, functools.partial(_moments, layer))


def _next(generator: Any, ordered: bool = True) -> Any:
    """Draw as Keras does and fold the replica's number into the key; replica 0 draws the numbers of one device."""
    seed = layer_methods.own_next(generator, ordered)
    current = current_step.current()
    if current is None:
        return seed
    current.draws[id(generator)] += 1
    if current.updating is not None:  # all replicas apply one update, which is that of one device
        _require_whole_updates(current.updating)
        return seed
    if current.index is not None:
        key = tf.math.floormod(tf.cast(current.index, tf.int64) * _SEED_STRIDE, 1 << 31)
        return seed + tf.cast(tf.stack([key, tf.zeros_like(key)]), seed.dtype)
    key = (tf_strategies.replica_index() * _SEED_STRIDE) % (1 << 31)
    return seed + tf.constant([key, 0], dtype=tf.as_dtype(seed.dtype)) if key else seed


def _require_whole_updates(optimizer: Any) -> None:
    strategy = tf.distribute.get_strategy()
    if services(strategy).sharding is not None or getattr(strategy, "cuts_weights", False):
        raise sharded_optimizer.refused_draws(
            optimizer,
            "draws random numbers in its update",
            because="each process updates what it has of the weights, and would draw for that alone",
            instead="a strategy that keeps weights and optimizers whole",
        )


def _moments(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean and variance of the global batch over the unmasked entries.

    First the mean is reduced, then the squared distances from it: their sum loses nothing where values are far from
    zero, unlike the difference E(x^2) - E(x)^2, which Keras takes. With a mask Keras also forgets that the layer is
    synchronized, and counts a replica's entries whether they are examples or not.
    """
    current = current_step.current()
    if current is None:
        return layer_methods.own_moments(layer, inputs, mask)
    axes = layer_methods.reduction_axes(layer)
    present = tf.cast(current.present, inputs.dtype)
    channels = inputs.shape[layer.axis]
    shape = [1] * inputs.shape.rank
    shape[layer.axis] = channels
    if mask is None:
        weight = None
        local_count = tf.cast(tf.size(inputs) // channels, inputs.dtype)
    else:
        weight = tf.broadcast_to(tf.cast(tf.expand_dims(mask, -1), inputs.dtype), tf.shape(inputs))
        local_count = tf.reduce_sum(weight) / channels

    def total(values: tf.Tensor) -> tf.Tensor:
        values = values if weight is None else tf.math.multiply_no_nan(values, weight)
        return tf.math.multiply_no_nan(tf.reduce_sum(values, axis=axes), present)

    what = f"the synchronized layer {layer.name!r}"
    sums, count = across.summed([total(inputs), local_count * present], what, current)
    mean = tf.math.divide_no_nan(sums, count)
    # The distances sum to zero, so the variance does not change with the mean: its gradient need not travel.
    centre = tf.stop_gradient(tf.reshape(mean, shape))
    (squares,) = across.summed([total(tf.square(inputs - centre))], what, current)
    return mean, tf.math.divide_no_nan(squares, count)
