"""Models that train on the hardest examples of a batch, which a part of the batch may be too few for."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from batch_wide_cases import BATCH, STRATEGY, X, Y
from hearing import heard
from keras import ops

_ROWS = 2 * BATCH


def _hardest(count: int) -> Callable[[Any, Any], Any]:
    """Return the mean over the examples with the largest errors, as a loss or a metric."""

    def hardest(y: Any, p: Any) -> Any:
        return ops.mean(ops.top_k(ops.mean(ops.square(y - p), axis=-1), count)[0])

    return hardest


class Largest(keras.losses.Loss):
    """The largest errors, each of them."""

    def call(self, y: Any, p: Any) -> Any:
        return ops.top_k(ops.mean(ops.square(y - p), axis=-1), 6)[0]


class Hardest(keras.Sequential):
    """Trains on the examples with the largest errors, in a step of its own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = _hardest(2)(y, self(x))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def _trained(kind: Any, scope: Any, **options: Any) -> tuple[list[Any], list[str]]:
    """Return logs and weights, and what is said; a callback resets metrics after the last batch of an epoch."""
    keras.utils.set_random_seed(3)
    with scope:
        model = kind([keras.Input((4,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3, "softplus")])
        model.compile(keras.optimizers.SGD(0.05), **options)
    reset = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch and model.reset_metrics())
    with heard() as said:
        fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [reset], "epochs": 2}
        history = model.fit(X[:_ROWS], Y[:_ROWS], **fit).history
        logs = model.evaluate(X[:_ROWS], Y[:_ROWS], batch_size=BATCH, verbose=0)
    return [*history.values(), logs, *model.get_weights()], said


def two_outputs() -> dict[str, Any]:
    """Return the largest difference from one device, and what is said, of two losses that are not alike."""

    def total(y: Any, p: Any) -> Any:
        return ops.sum(ops.square(y - p))

    def trained(scope: Any, **options: Any) -> tuple[list[Any], list[str]]:
        keras.utils.set_random_seed(3)
        with scope:
            inputs = keras.Input((4,))
            model = keras.Model(inputs, [keras.layers.Dense(3, name=name)(inputs) for name in "ab"])
            model.compile(keras.optimizers.SGD(0.01), loss=[Largest(), total], **options)
        with heard() as said:
            fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
            history = model.fit(X[:_ROWS], [Y[:_ROWS]] * 2, **fit).history
        return [*history.values(), *model.get_weights()], said

    (found, said), (wanted, _) = trained(STRATEGY.scope()), trained(nullcontext(), run_eagerly=True)
    apart = [float(np.max(np.abs(np.subtract(one, other)))) for one, other in zip(found, wanted, strict=True)]
    return {"apart": max(apart), "said": said}


def said_of_a_fixed_batch() -> list[str]:
    """Return what is said before a step fails in which the rows of a batch are written as a number."""
    with STRATEGY.scope():
        weighted = keras.layers.Lambda(lambda x: x * ops.ones([BATCH, 1]))
        model = keras.Sequential([keras.Input((4,)), weighted, keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    with heard() as said, suppress(ValueError):
        model.fit(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0)
    return said


def hard_examples() -> dict[str, Any]:
    """Return the largest difference from one device, the warnings, and those about a step of its own."""
    options = {"loss": _hardest(6), "metrics": [_hardest(4)]}
    found, said = _trained(keras.Sequential, STRATEGY.scope(), **options)
    wanted, _ = _trained(keras.Sequential, nullcontext(), run_eagerly=True, **options)
    apart = [float(np.max(np.abs(np.subtract(one, other)))) for one, other in zip(found, wanted, strict=True)]
    _, in_a_step = _trained(Hardest, STRATEGY.scope(), loss="mse")
    return {"apart": max(apart), "said": said, "in a step": in_a_step}
