"""Optimizers that a `train_step` of one's own builds in its first step, under any strategy; the matrix has every other.

A model has a layer for each, so that one step trains all. Run in a worker process; functions return JSON values.
"""

import contextlib
import importlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from refusal_cases import X, Y


def optimizers() -> dict[str, keras.optimizers.Optimizer]:
    """Return those whose slots begin with a value, are assigned while they are built, are factors, or of another."""
    nadam = keras.optimizers.Nadam(0.01)
    return {
        "Nadam": keras.optimizers.Nadam(0.01),
        "ScheduleFreeAdamW": keras.optimizers.ScheduleFreeAdamW(0.01),
        "Adafactor": keras.optimizers.Adafactor(0.01),
        "LossScaleOptimizer": keras.optimizers.LossScaleOptimizer(nadam, initial_scale=4.0),
    }


class Many(keras.Model):
    """A layer for each optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = optimizers()
        self.own = {name: keras.layers.Dense(3, name=name.lower()) for name in self.by_name}
        for layer in self.own.values():
            layer.build((None, X.shape[1]))

    def call(self, x: Any) -> Any:
        return ops.mean(ops.stack([layer(x) for layer in self.own.values()]), axis=0)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        for name, layer in self.own.items():
            with tf.GradientTape() as tape:
                loss = ops.mean(ops.square(y - layer(x)))
                target = self.by_name[name].scale_loss(loss)
            self.by_name[name].apply(tape.gradient(target, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss}


def trained(scope: Any, *, first: bool, **options: Any) -> Many:
    """Return a model that has trained, with optimizers that were built first or in the first step."""
    keras.utils.set_random_seed(1)
    with scope:
        network = Many()
        network.compile(**options)
    for name, layer in network.own.items() if first else ():
        network.by_name[name].build(layer.trainable_variables)
    network.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    return network


def apart(cases_of: str, *, run_eagerly: bool = False) -> dict[str, float]:
    """Return of each optimizer's layer the largest difference from one device; infinite if replicas' copies differ."""
    module: Any = importlib.import_module(cases_of)
    # of parameter servers the synchronous one has the numbers of one device
    strategy = module.STRATEGY if hasattr(module, "STRATEGY") else module.strategy(max_staleness=0)
    one = trained(contextlib.nullcontext(), first=True, run_eagerly=True)  # the same numbers, and nothing is traced
    strategy.loss_reduction = "mean"  # to try the step would take as long as to train
    two = trained(strategy.scope(), first=False, run_eagerly=run_eagerly)
    strategy.loss_reduction = "detect"

    def differ(variable: keras.Variable) -> bool:
        copies = strategy.experimental_local_results(variable.value)
        return len({np.asarray(copy).tobytes() for copy in copies}) > 1

    def difference(name: str) -> float:
        if any(differ(variable) for variable in [*two.own[name].weights, *two.by_name[name].variables]):
            return float("inf")
        pairs = zip(one.own[name].get_weights(), two.own[name].get_weights(), strict=True)
        return max(float(np.abs(mine - other).max()) for mine, other in pairs)

    return {name: difference(name) for name in one.own}
