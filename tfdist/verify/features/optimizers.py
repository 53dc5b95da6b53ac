"""What stands between the gradients and the weights: clipping, accumulation, averages, decay, schedules."""

from typing import Any

import numpy as np

import tfdist.optimizers
from tfdist.verify.context import Context
from tfdist.verify.feature import Outcome, feature
from tfdist.verify.lazy import keras
from tfdist.verify.tasks import EVEN, PARTIAL, dense, regression, sgd, trained


def _fit(ctx: Context, optimizer: Any, *, rows: int = EVEN, scale: float = 1.0, **fit: Any) -> Outcome:
    """Train with an optimizer, made by a function inside the scope; large targets make large gradients."""
    with ctx.scope():
        model = dense()
        model.compile(optimizer(), "mse")
    x, y = regression(rows)
    return trained(ctx, model, x, y * scale, **fit)


@feature()
def clipnorm(ctx: Context) -> Outcome:
    """Clipnorm: each gradient's norm is limited, after the replicas' gradients are summed."""
    return _fit(ctx, lambda: sgd(clipnorm=0.5), scale=10)


@feature()
def global_clipnorm(ctx: Context) -> Outcome:
    """Global_clipnorm: the norm over all gradients is limited."""
    return _fit(ctx, lambda: sgd(global_clipnorm=0.5), scale=10)


@feature()
def clipvalue(ctx: Context) -> Outcome:
    """Clipvalue: each element of the gradients is limited."""
    return _fit(ctx, lambda: sgd(clipvalue=0.1), scale=10)


@feature()
def gradient_accumulation(ctx: Context) -> Outcome:
    """Gradient_accumulation_steps=2, with a partial batch."""
    return _fit(ctx, lambda: sgd(gradient_accumulation_steps=2), rows=PARTIAL)


@feature()
def ema_overwrite(ctx: Context) -> Outcome:
    """Moving average of the weights, written over them every two steps."""
    return _fit(ctx, lambda: sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2))


@feature()
def ema(ctx: Context) -> Outcome:
    """Moving average of the weights, written over them when fit ends."""
    return _fit(ctx, lambda: sgd(use_ema=True, ema_momentum=0.9))


@feature()
def weight_decay(ctx: Context) -> Outcome:
    """AdamW with weight decay on all weights but the biases."""

    def optimizer() -> Any:
        adamw = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        adamw.exclude_from_weight_decay(var_names=["bias"])
        return adamw

    return _fit(ctx, optimizer)


@feature()
def lars(ctx: Context) -> Outcome:
    """tfdist's LARS with weight decay, after a warm-up."""
    optimizers = tfdist.optimizers
    return _fit(ctx, lambda: optimizers.LARS(optimizers.Warmup(2.0, 4), weight_decay=0.01, trust_coefficient=0.05))


@feature()
def lamb(ctx: Context) -> Outcome:
    """Keras' Lamb."""
    return _fit(ctx, lambda: keras.optimizers.Lamb(0.02))


@feature()
def learning_rate_schedule(ctx: Context) -> Outcome:
    """A learning rate that decays with the iterations."""
    return _fit(ctx, lambda: sgd(learning_rate=keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.5)))


@feature()
def accumulation_with_clipping(ctx: Context) -> Outcome:
    """gradient_accumulation_steps=3 with global_clipnorm: accumulated first, then clipped."""
    return _fit(ctx, lambda: sgd(gradient_accumulation_steps=3, global_clipnorm=0.5), scale=10)


@feature()
def sparse_gradients(ctx: Context) -> Outcome:
    """Embedding: gradients of single rows, the same row on several replicas."""
    return _embedded(ctx, lambda: sgd())


@feature()
def sparse_gradients_clipped(ctx: Context) -> Outcome:
    """Embedding with global_clipnorm and Adam."""
    return _embedded(ctx, lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1))


def _embedded(ctx: Context, optimizer: Any) -> Outcome:
    with ctx.scope():
        layers = [keras.layers.Embedding(7, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers])
        model.compile(optimizer(), "mse")
    numbers = np.stack([np.arange(EVEN) % 7, np.arange(EVEN) // 5 % 7], axis=1)
    return trained(ctx, model, numbers, regression(EVEN)[1])


def _kind(ctx: Context, name: str, **options: Any) -> Outcome:
    return _fit(ctx, lambda: getattr(keras.optimizers, name)(**{"learning_rate": 0.01, **options}), epochs=1)


@feature()
def optimizer_adam(ctx: Context) -> Outcome:
    """Adam with AMSGrad."""
    return _kind(ctx, "Adam", amsgrad=True)


@feature()
def optimizer_rmsprop(ctx: Context) -> Outcome:
    """RMSprop, centered, with momentum."""
    return _kind(ctx, "RMSprop", momentum=0.5, centered=True)


@feature()
def optimizer_adagrad(ctx: Context) -> Outcome:
    """Adagrad."""
    return _kind(ctx, "Adagrad")


@feature()
def optimizer_nadam(ctx: Context) -> Outcome:
    """Nadam, which keeps a product over iterations."""
    return _kind(ctx, "Nadam")


@feature()
def optimizer_lion(ctx: Context) -> Outcome:
    """Lion, which steps by signs."""
    return _kind(ctx, "Lion")


@feature()
def optimizer_lamb(ctx: Context) -> Outcome:
    """LAMB, which looks at whole layers."""
    return _kind(ctx, "Lamb")


@feature()
def optimizer_ftrl(ctx: Context) -> Outcome:
    """FTRL with L1 and L2."""
    return _kind(ctx, "Ftrl", l1_regularization_strength=0.01, l2_regularization_strength=0.01)


@feature()
def optimizer_nesterov(ctx: Context) -> Outcome:
    """SGD with Nesterov momentum and weight decay."""
    return _kind(ctx, "SGD", momentum=0.9, nesterov=True, weight_decay=0.05)
