"""What stands between the gradients and the weights: clipping, accumulation, averages, decay, schedules."""

from typing import Any

from tfdist.verify.context import Context
from tfdist.verify.feature import Outcome, feature
from tfdist.verify.lazy import keras
from tfdist.verify.tasks import dense, regression, sgd, trained


def _fit(ctx: Context, optimizer: Any, *, rows: int = 37, scale: float = 1.0, **fit: Any) -> Outcome:
    """Train with an optimizer, made by a function inside the scope; large targets make large gradients."""
    with ctx.scope():
        model = dense()
        model.compile(optimizer(), "mse")
    x, y = regression(rows)
    return trained(ctx, model, x, y * scale, **fit)


@feature("clipnorm: each gradient's norm is limited, after the replicas' gradients are summed")
def clipnorm(ctx: Context) -> Outcome:
    return _fit(ctx, lambda: sgd(clipnorm=0.5), rows=32, scale=10)


@feature("global_clipnorm: the norm over all gradients is limited")
def global_clipnorm(ctx: Context) -> Outcome:
    return _fit(ctx, lambda: sgd(global_clipnorm=0.5), rows=32, scale=10)


@feature("clipvalue: each element of the gradients is limited")
def clipvalue(ctx: Context) -> Outcome:
    return _fit(ctx, lambda: sgd(clipvalue=0.1), rows=32, scale=10)


@feature("gradient_accumulation_steps=2, with a partial batch")
def gradient_accumulation(ctx: Context) -> Outcome:
    return _fit(ctx, lambda: sgd(gradient_accumulation_steps=2))


@feature("moving average of the weights, written over them every two steps")
def ema_overwrite(ctx: Context) -> Outcome:
    return _fit(ctx, lambda: sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2))


@feature("moving average of the weights, written over them when fit ends")
def ema(ctx: Context) -> Outcome:
    return _fit(ctx, lambda: sgd(use_ema=True, ema_momentum=0.9))


@feature("AdamW with weight decay on all weights but the biases")
def weight_decay(ctx: Context) -> Outcome:
    def optimizer() -> Any:
        adamw = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        adamw.exclude_from_weight_decay(var_names=["bias"])
        return adamw

    return _fit(ctx, optimizer)
