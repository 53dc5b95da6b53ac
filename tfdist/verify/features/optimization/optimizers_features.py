"""Optimizers: clipping, accumulation, averages, decay, schedules."""

from typing import Any

import numpy as np

import tfdist.callbacks
import tfdist.optimizers
from tfdist.verify.feature import Context, Function, Outcome, feature, keras
from tfdist.verify.feature_tasks import EVEN, PARTIAL, compiled, regression, row, sgd, trained


def _fit(ctx: Context, optimizer: Any, *, rows: int = EVEN, scale: float = 1.0, **fit: Any) -> Outcome:
    """Train with an optimizer, made by a function inside the scope; large targets make large gradients."""
    model = compiled(ctx, optimizer=optimizer)
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


def _embedded(ctx: Context, optimizer: Any, *, rows: int = EVEN, **fit: Any) -> Outcome:
    """Train a table of which every batch asks for each row several times, and a kernel."""
    with ctx.scope():
        layers = [keras.layers.Embedding(7, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers])
        model.compile(optimizer(), "mse")
        # On one device Keras builds inside the first step, where a slot that begins as its weight begins as zero.
        model.optimizer.build(model.trainable_variables)
    numbers = np.stack([np.arange(rows) % 7, np.arange(rows) // 5 % 7], axis=1)
    return trained(ctx, model, numbers, regression(rows)[1], **fit)


@feature()
def sparse_gradients(ctx: Context) -> Outcome:
    """Embedding: gradients of single rows, the same row on several replicas."""
    return _embedded(ctx, lambda: sgd())


@feature()
def sparse_gradients_clipped(ctx: Context) -> Outcome:
    """Embedding with global_clipnorm and Adam."""
    return _embedded(ctx, lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1))


def _kind(name: str, **options: Any) -> Function:
    """Train an embedding and a kernel: an optimizer that squares gradients squares each row of a lookup by itself."""
    options = {"learning_rate": 0.01, **options}
    return lambda ctx: _embedded(ctx, lambda: getattr(keras.optimizers, name)(**options), rows=PARTIAL, epochs=1)


row("optimizer_sgd", "Embedding with plain SGD, which adds up rows of one index", _kind("SGD"))
row(
    "optimizer_nesterov",
    "Embedding with SGD, Nesterov momentum and weight decay",
    _kind("SGD", momentum=0.9, nesterov=True, weight_decay=0.05),
)
row("optimizer_adam", "Embedding with Adam and AMSGrad", _kind("Adam", amsgrad=True))
row(
    "optimizer_adamw",
    "Embedding with AdamW, and a moving average of the weights",
    _kind("AdamW", use_ema=True, ema_momentum=0.9),
)
row("optimizer_schedule_free_adamw", "Embedding with schedule-free AdamW", _kind("ScheduleFreeAdamW"))
row("optimizer_nadam", "Embedding with Nadam, which keeps a product over iterations", _kind("Nadam"))
row("optimizer_adamax", "Embedding with Adamax, which takes the largest row of each index", _kind("Adamax"))
row(
    "optimizer_adadelta", "Embedding with Adadelta, which squares its updates too", _kind("Adadelta", learning_rate=1.0)
)
row("optimizer_adagrad", "Embedding with Adagrad", _kind("Adagrad"))
row(
    "optimizer_adafactor", "Embedding with Adafactor, which looks at rows, columns and whole tables", _kind("Adafactor")
)
row(
    "optimizer_rmsprop",
    "Embedding with RMSprop, centered, with momentum",
    _kind("RMSprop", momentum=0.5, centered=True),
)
row("optimizer_lion", "Embedding with Lion, which steps by signs", _kind("Lion"))
row("optimizer_lamb", "Embedding with LAMB, which looks at whole layers", _kind("Lamb"))
row(
    "optimizer_ftrl",
    "Embedding with FTRL, L1 and L2",
    _kind("Ftrl", l1_regularization_strength=0.01, l2_regularization_strength=0.01),
)
row("optimizer_muon", "Embedding with Muon, which leaves tables to AdamW", _kind("Muon"))
row(
    "optimizer_accumulating_adam",
    "Embedding with Adam and gradient_accumulation_steps=2, which accumulates whole tables",
    _kind("Adam", gradient_accumulation_steps=2),
)


@feature()
def optimizer_loss_scaled_adam(ctx: Context) -> Outcome:
    """Embedding with Adam inside a LossScaleOptimizer."""
    callbacks = [tfdist.callbacks.LossScaleLogger()]  # fit has it by itself in a tfdist scope
    wrap = keras.optimizers.LossScaleOptimizer
    return _embedded(ctx, lambda: wrap(keras.optimizers.Adam(0.01)), rows=PARTIAL, epochs=1, callbacks=callbacks)


@feature()
def optimizer_several(ctx: Context) -> Outcome:
    """Embedding with Adam, and the kernel with SGD, in one MultiOptimizer."""
    optimizers = keras.optimizers

    def several() -> Any:
        return optimizers.MultiOptimizer(optimizers.OptimizerMap(sgd(), {".*embeddings": optimizers.Adam(0.01)}))

    return _embedded(ctx, several, rows=PARTIAL, epochs=1)


@feature()
def optimizer_distributed(ctx: Context) -> Outcome:
    """Embedding with Adam inside tfdist's DistributedOptimizer."""
    return _embedded(ctx, lambda: tfdist.optimizers.DistributedOptimizer(keras.optimizers.Adam(0.01)), rows=PARTIAL)


@feature()
def optimizer_of_ones_own(ctx: Context) -> Outcome:
    """Embedding with a subclass of SGD that squares gradients."""

    class Squares(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign_sub(variable, keras.ops.multiply(keras.ops.square(gradient), learning_rate))

    return _embedded(ctx, lambda: Squares(0.1), rows=PARTIAL, epochs=1)
