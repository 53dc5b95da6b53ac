"""Layers in a tfdist scope: every replica its own random numbers, all replicas the same state."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_model, tf_strategies
from tfdist.training import reduction, step

# An odd constant near 2^32 / golden ratio: multiples of it by small replica numbers lie far apart in every bit range.
_SEED_STRIDE = 0x9E3779B1


def adapt(model: keras.Model) -> None:
    """Let the model's seed generators draw differently on every replica, reproducibly from their seeds."""
    for generator in keras_model.seed_generators(model):
        vars(generator).setdefault("next", functools.partial(_next, generator))


def _next(generator: Any, ordered: bool = True) -> Any:
    """Draw as Keras does, and fold the replica's number into the key; replica 0 draws what one device draws."""
    seed = type(generator).next(generator, ordered=ordered)
    if step.current() is None:
        return seed
    key = (tf_strategies.replica_index() * _SEED_STRIDE) % (1 << 31)
    return seed + tf.constant([key, 0], dtype=tf.as_dtype(seed.dtype)) if key else seed


def averaged_states(model: keras.Model, current: step.Step) -> tuple[list[keras.Variable], list[tf.Tensor]]:
    """Return the layers' own states (moving statistics) and this replica's weighted part of their average.

    All replicas started the step with equal states and moved them by statistics of their own examples. Moving averages are
    linear in those, so the average of the states is the state moved by the average statistics.
    """
    variables = keras_model.states(model)
    return variables, [reduction.weighted(tf.convert_to_tensor(v.value), current.share) for v in variables]
