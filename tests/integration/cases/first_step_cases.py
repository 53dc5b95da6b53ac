"""Every optimizer of Keras, built in its first step by a `train_step` of one's own, under any strategy.

A model has a layer for each, so that one step trains all. Run in a worker process; functions return JSON values.
"""

import contextlib
import functools
import importlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from refusal_cases import X, Y

AROUND = ("LossScaleOptimizer", "MultiOptimizer")
KERAS = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind is not keras.optimizers.Optimizer
}


def every_optimizer() -> dict[str, keras.optimizers.Optimizer]:
    """Return each optimizer that Keras has, some with options that make further variables, and those around others."""
    nadam = keras.optimizers.Nadam
    rules = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1, momentum=0.9), {".*bias": nadam(0.01)})
    return {
        **{name: kind(0.01) for name, kind in KERAS.items() if name not in AROUND},
        "amsgrad": keras.optimizers.Adam(0.01, amsgrad=True),
        "momentum": keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "centered": keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
        "averaged": nadam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
        "accumulated": nadam(0.01, gradient_accumulation_steps=2),
        AROUND[0]: keras.optimizers.LossScaleOptimizer(nadam(0.01), initial_scale=4.0),
        AROUND[1]: keras.optimizers.MultiOptimizer(rules),
    }


class Many(keras.Model):
    """A layer for each optimizer."""

    def __init__(self, only: list[str] | None) -> None:
        super().__init__()
        self.by_name = {name: one for name, one in every_optimizer().items() if only is None or name in only}
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


def trained(scope: Any, only: list[str] | None, *, first: bool, **options: Any) -> Many:
    """Return a model that has trained, with optimizers that were built first or in the first step."""
    keras.utils.set_random_seed(1)
    with scope:
        network = Many(only)
        network.compile(**options)
    for name, layer in network.own.items() if first else ():
        network.by_name[name].build(layer.trainable_variables)
    network.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    return network


@functools.cache
def of_one_device(only: tuple[str, ...] | None) -> Many:
    """Return what one device trains eagerly: it has the same numbers, and nothing is traced."""
    return trained(contextlib.nullcontext(), only and list(only), first=True, run_eagerly=True)


def apart(cases_of: str, options: dict[str, Any], only: list[str] | None = None) -> dict[str, float]:
    """Return of each optimizer's layer the largest difference from one device; infinite if replicas' copies differ."""
    module: Any = importlib.import_module(cases_of)
    # of parameter servers the synchronous one has the numbers of one device
    strategy = module.STRATEGY if hasattr(module, "STRATEGY") else module.strategy(max_staleness=0)
    one = of_one_device(only and tuple(only))
    strategy.loss_reduction = "mean"  # to try the step would take as long as to train
    two = trained(strategy.scope(), only, first=False, **options)
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
