"""Optimizers that are built by the first step of a train_step of one's own, which updates with all of them."""

from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import WIDTH, history, regression, variables

#: five batches of 6, two per graph, and one of 3, for which XLA would compile every update again
_BATCH, _ROWS, _EVEN_ROWS = 6, 33, 30
_AROUND_OTHERS = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")


def _of_keras() -> dict[str, Any]:
    """Return an optimizer of each kind, further ones whose options make more variables, and those around others."""
    optimizers = keras.optimizers
    kinds = {
        name: kind
        for name, kind in vars(optimizers).items()
        if isinstance(kind, type) and issubclass(kind, optimizers.Optimizer) and name not in _AROUND_OTHERS
    }
    nadam = optimizers.Nadam
    rules = optimizers.OptimizerMap(optimizers.SGD(0.1, momentum=0.9), {".*bias": nadam(0.01)})
    return {
        **{name: kind(0.05) for name, kind in sorted(kinds.items())},
        "amsgrad": optimizers.Adam(0.01, amsgrad=True),
        "momentum": optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "centered": optimizers.RMSprop(0.01, momentum=0.9, centered=True),
        "averaged": nadam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
        "accumulated": nadam(0.01, gradient_accumulation_steps=2),
        "scaled": optimizers.LossScaleOptimizer(nadam(0.01), initial_scale=4.0),
        "several": optimizers.MultiOptimizer(rules),
    }


def _trained(ctx: Context, *, rows: int = _ROWS, built: bool = False, **options: Any) -> Outcome:
    """Train a layer by each optimizer, in one step; return the logs, the layers and all that optimizers keep."""

    class Many(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.by_name = _of_keras()
            self.own = {name: keras.layers.Dense(3, name=name.lower()) for name in self.by_name}
            for layer in self.own.values():
                layer.build((None, WIDTH))

        def call(self, x: Any) -> Any:
            return keras.ops.mean(keras.ops.stack([layer(x) for layer in self.own.values()]), axis=0)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            losses = {}
            for name, layer in self.own.items():
                optimizer, weights = self.by_name[name], layer.trainable_variables
                with tf.GradientTape() as tape:
                    losses[name] = keras.ops.mean(keras.ops.square(y - layer(x)))
                    scaled = optimizer.scale_loss(losses[name])
                optimizer.apply(tape.gradient(scaled, weights), weights)
            return losses

    with ctx.scope():
        model = Many()
        model.compile(**options)
        for name, layer in model.own.items() if built else ():
            model.by_name[name].build(layer.trainable_variables)
    result = model.fit(*regression(rows), batch_size=_BATCH, shuffle=False, verbose=0)
    outcome: dict[str, np.ndarray] = history(result)
    for name, layer in model.own.items():
        outcome |= {**variables(ctx, layer.weights, f"weights/{name}")}
        outcome |= {**variables(ctx, model.by_name[name].variables, f"optimizer/{name}")}
    return outcome


def _on_one_device(ctx: Context, rows: int = _ROWS) -> Outcome:
    return _trained(ctx, rows=rows, built=True, run_eagerly=True)  # tracing so many updates would take most of the time


@feature(reference=_on_one_device, deadline_seconds=240)
def first_step_builds_every_optimizer(ctx: Context) -> Outcome:
    """Every optimizer of Keras, built by the first step, with steps_per_execution=2."""
    return _trained(ctx, steps_per_execution=2)


@feature(reference=lambda ctx: _on_one_device(ctx, _EVEN_ROWS), deadline_seconds=240)
def first_step_builds_every_optimizer_under_xla(ctx: Context) -> Outcome:
    """Every optimizer of Keras, built by the first step, whose program XLA compiles."""
    return _trained(ctx, rows=_EVEN_ROWS, jit_compile=True)
