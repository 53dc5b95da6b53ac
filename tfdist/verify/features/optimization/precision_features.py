"""Numbers of 16 bits, and the scaling of losses that they need."""

from typing import Any

import numpy as np

import tfdist.callbacks
from tfdist.verify.feature import Context, Outcome, feature, keras
from tfdist.verify.feature_tasks import BATCH, EVEN, compiled, deep, regression, sgd, trained

# Sums over a batch are rounded to 11 (float16) or 8 (bfloat16) bits, in another order on every number of replicas.
_FLOAT16, _BFLOAT16 = 2e-3, 1e-2


def _in_policy(ctx: Context, policy: str) -> Outcome:
    keras.config.set_dtype_policy(policy)
    model = compiled(ctx, deep, lambda: sgd(learning_rate=0.02), metrics=["mae"])
    # In a tfdist scope fit has this callback by itself.
    return trained(ctx, model, *regression(EVEN), callbacks=[tfdist.callbacks.LossScaleLogger()])


@feature(tolerance=_FLOAT16)
def mixed_float16(ctx: Context) -> Outcome:
    """The policy mixed_float16, whose optimizer scales the loss: green within 2e-3."""
    return _in_policy(ctx, "mixed_float16")


@feature(tolerance=_BFLOAT16)
def mixed_bfloat16(ctx: Context) -> Outcome:
    """The policy mixed_bfloat16: green within 1e-2."""
    return _in_policy(ctx, "mixed_bfloat16")


def _scaled(ctx: Context, x: np.ndarray, y: np.ndarray, inner: Any = sgd, **options: Any) -> Outcome:
    """Train with a scaled loss; the scale after every batch is part of the outcome."""
    model = compiled(ctx, optimizer=lambda: keras.optimizers.LossScaleOptimizer(inner(), **options))
    scales: list[float] = []

    def note(batch: int, logs: Any = None) -> None:
        scales.append(float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale)))

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    callbacks = [watch, tfdist.callbacks.LossScaleLogger()]
    return {**trained(ctx, model, x, y, callbacks=callbacks), "scale after each batch": scales}


def _bad_examples(replicas: int, *, everywhere: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Data in which batch 1 + r has an infinite example on replica r; with ``everywhere``, batch 1 on all."""
    x, y = regression(BATCH * (replicas + 2))
    for replica in range(replicas):
        batch = 1 if everywhere else 1 + replica
        x[batch * BATCH + BATCH * replica // replicas, 0] = np.inf
    return x, y


@feature()
def loss_scale(ctx: Context) -> Outcome:
    """LossScaleOptimizer at its default scale of 2**15."""
    return _scaled(ctx, *regression(EVEN))


@feature()
def loss_scale_grows(ctx: Context) -> Outcome:
    """LossScaleOptimizer that doubles its scale every two good steps, around a clipped optimizer."""
    return _scaled(ctx, *regression(EVEN), inner=lambda: sgd(global_clipnorm=0.1), dynamic_growth_steps=2)


@feature(per_layout=True)
def loss_scale_bad_replica(ctx: Context) -> Outcome:
    """A bad gradient on each replica in turn: the step is skipped and the scale halved everywhere."""
    return _scaled(ctx, *_bad_examples(ctx.replicas), dynamic_growth_steps=3)


@feature(per_layout=True)
def loss_scale_bad_everywhere(ctx: Context) -> Outcome:
    """A bad gradient on all replicas at once."""
    return _scaled(ctx, *_bad_examples(ctx.replicas, everywhere=True))


@feature(per_layout=True)
def loss_scale_bad_last_replica_accumulating(ctx: Context) -> Outcome:
    """A bad gradient on the last replica while gradients are accumulated over two steps."""
    x, y = regression(4 * BATCH)
    x[2 * BATCH - 1, 0] = np.inf
    return _scaled(ctx, x, y, inner=lambda: sgd(gradient_accumulation_steps=2))


@feature(tolerance=_FLOAT16, may_refuse=True)
def float8(ctx: Context) -> Outcome:
    """Layers quantized to float8, which keep the largest inputs, weights and gradients of the latest batches."""
    model = compiled(ctx, _in_float8, lambda: sgd(learning_rate=0.02), metrics=["mae"])
    return trained(ctx, model, *regression(EVEN - 3))


def _in_float8() -> Any:
    model = deep()
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            layer.quantize("float8")
    return model
