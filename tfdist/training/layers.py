"""Layers in a tfdist scope: every replica its own random numbers, all replicas the same state."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_layers, keras_model, tf_strategies
from tfdist.training import reduction, step

# An odd constant near 2^32 / golden ratio: multiples of it by small replica numbers lie far apart in every bit range.
_SEED_STRIDE = 0x9E3779B1


def adapt(model: keras.Model) -> None:
    """Let replicas draw different random numbers, reproducibly, and synchronised statistics count examples."""
    for generator in keras_model.seed_generators(model):
        keras_layers.override_next(generator, functools.partial(_next, generator))
    for layer in keras_model.layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            keras_layers.override_moments(layer, functools.partial(_moments, layer))


def _next(generator: Any, ordered: bool = True) -> Any:
    """Draw as Keras does, and fold the replica's number into the key; replica 0 draws what one device draws."""
    seed = keras_layers.own_next(generator, ordered)
    if step.current() is None:
        return seed
    key = (tf_strategies.replica_index() * _SEED_STRIDE) % (1 << 31)
    return seed + tf.constant([key, 0], dtype=tf.as_dtype(seed.dtype)) if key else seed


def _moments(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance of the global batch over the unmasked entries, in one reduction.

    Keras takes three reductions, forgets that the layer is synchronised when there is a mask, and counts a replica's
    entries whether they are examples or not. Sums are taken around the moving mean, which every replica knows: the
    variance of values far from zero would cancel otherwise.
    """
    current = step.current()
    if current is None:
        return keras_layers.own_moments(layer, inputs, mask)
    axes = keras_layers.reduction_axes(layer)
    weight = (
        tf.ones_like(inputs) if mask is None else tf.cast(tf.expand_dims(mask, -1), inputs.dtype) * tf.ones_like(inputs)
    )
    weight *= tf.cast(current.present, inputs.dtype)
    shape = [1] * inputs.shape.rank
    shape[layer.axis] = inputs.shape[layer.axis]
    centre = tf.stop_gradient(tf.reshape(tf.cast(layer.moving_mean.value, inputs.dtype), shape))
    shifted = tf.math.multiply_no_nan(inputs - centre, weight)
    sums = [tf.reduce_sum(value, axis=axes) for value in (shifted, tf.square(shifted), weight)]
    total, squares, count = tf.unstack(reduction.sum_over_replicas([tf.stack(sums)])[0])
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return mean + tf.reshape(centre, [-1]), variance


def averaged_states(model: keras.Model, current: step.Step) -> tuple[list[keras.Variable], list[tf.Tensor]]:
    """Return the layers' own states (moving statistics) and this replica's weighted part of their average.

    All replicas started the step with equal states and moved them by statistics of their own examples. Moving
    averages are linear in those, so the average of the states is the state moved by the average statistics.
    """
    variables = keras_model.states(model)
    return variables, [reduction.weighted(tf.convert_to_tensor(v.value), current.share) for v in variables]
