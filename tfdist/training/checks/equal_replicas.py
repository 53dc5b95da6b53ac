"""The check, after a step, that all replicas have the same weights.

Optimizers give all replicas the same update. Other code may give each its own: an optimizer or a step that adds random
numbers to weights, or a layer that assigns values of its replica's examples to them. Replicas that differ compute
gradients of different models, and what is saved is the first one's.
"""

import weakref
from typing import Any

import keras
import numpy as np

from tfdist.collectives.workers.worker_processes import Workers, as_float, as_integer
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.training.checks import advice, step_probe

_EPOCHS = 2
# relative to the sizes of a variable's elements: devices of different kinds round differently
_ROUNDING = 1e-5
# a prime, so that few layouts of a weight repeat it
_PERIOD = 1009


class Comparison:
    """Compares the replicas of a model after the first step of its first two epochs."""

    def __init__(self, model: keras.Model, strategy: Any, workers: Workers, *, training: bool) -> None:
        self._model = model
        self._strategy = strategy
        self._workers = workers
        self._left = None if training else 0  # epochs; None: not known yet
        self._epoch: weakref.ref[Any] | None = None

    def after_steps(self, iterator: Any) -> None:
        """Warn if replicas have different weights after the first steps of an epoch, which has this iterator."""
        if self._left == 0 or (self._epoch is not None and self._epoch() is iterator):
            return
        self._epoch = weakref.ref(iterator)
        if self._left is None:
            are_one = tf_strategies.replica_count(self._strategy) == 1 or self._strategy.apart is not None
            self._left = 0 if are_one or not may_differ(self._model) else _EPOCHS
        if self._left:
            paths = differing(self._model, self._workers)
            self._left = 0 if paths else self._left - 1
            if paths:
                step_probe.warn_once(self._model, self._workers, advice.apart(self._model, paths))


def may_differ(model: keras.Model) -> bool:
    """Return whether code of the user's, as its names show, assigns variables or computes an optimizer's updates."""
    optimizers = keras_trainer.optimizers(model)
    return any(map(keras_optimizer.has_own_updates, optimizers)) or any(
        map(layer_methods.may_assign, keras_trainer.layers(model))
    )


def differing(model: keras.Model, workers: Workers) -> list[str]:
    """Return the paths of the weights that differ between replicas; every worker must call this.

    States of layers are left out, because replicas combine them, and so are weights of which no replica has the whole.
    """
    combined = {id(variable) for variable in keras_variables.states(model)}
    weights = [
        weight
        for weight in model.weights
        if id(weight) not in combined
        and sharded_variable.sharding_of(weight) is None
        and keras.backend.is_float_dtype(weight.dtype)
    ]
    mine: list[int] = []
    for weight in weights:
        copies = [mark(copy.numpy()) for copy in tf_strategies.copies(keras_variables.value_of(weight))]
        marks = [own for own, _ in copies]
        mine += [as_integer(min(marks)), as_integer(max(marks)), as_integer(max(size for _, size in copies))]
    gathered = workers.gather(mine) if mine else np.zeros((1, 0))
    table = np.array([[as_float(one) for one in own] for own in gathered]).reshape(len(gathered), len(weights), 3)
    least, most, sizes = table[..., 0].min(axis=0), table[..., 1].max(axis=0), table[..., 2].max(axis=0)
    apart = most - least > _ROUNDING * sizes
    return [weight.path for weight, is_apart in zip(weights, apart, strict=True) if is_apart]


def mark(value: np.ndarray) -> tuple[float, float]:
    """Return a number that tells values apart, and their size.

    Example:
        >>> mark(np.array([3.0, 4.0]))[0] == mark(np.array([4.0, 3.0]))[0]
        False
    """
    flat = np.asarray(value, np.float64).ravel()
    if not np.isfinite(flat).all():
        return 0.0, 0.0
    return float(flat @ np.resize(np.cos(np.arange(1, _PERIOD + 1)), flat.shape)), float(np.abs(flat).sum())
