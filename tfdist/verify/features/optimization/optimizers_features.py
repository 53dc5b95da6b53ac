"""Optimizers: clipping, accumulation, averages, decay, schedules."""

from typing import Any

import numpy as np

import tfdist.callbacks
import tfdist.optimizers
from tfdist.verify.context import Context
from tfdist.verify.feature import Outcome, feature
from tfdist.verify.feature_tasks import EVEN, PARTIAL, compiled, regression, sgd, trained
from tfdist.verify.lazy import keras


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


def _kind(ctx: Context, name: str, **options: Any) -> Outcome:
    """Train an embedding and a kernel: an optimizer that squares gradients squares each row of a lookup by itself."""
    kind = getattr(keras.optimizers, name)
    return _embedded(ctx, lambda: kind(**{"learning_rate": 0.01, **options}), rows=PARTIAL, epochs=1)


@feature()
def optimizer_sgd(ctx: Context) -> Outcome:
    """Embedding with plain SGD, which adds up rows of one index."""
    return _kind(ctx, "SGD")


@feature()
def optimizer_nesterov(ctx: Context) -> Outcome:
    """Embedding with SGD, Nesterov momentum and weight decay."""
    return _kind(ctx, "SGD", momentum=0.9, nesterov=True, weight_decay=0.05)


@feature()
def optimizer_adam(ctx: Context) -> Outcome:
    """Embedding with Adam and AMSGrad."""
    return _kind(ctx, "Adam", amsgrad=True)


@feature()
def optimizer_adamw(ctx: Context) -> Outcome:
    """Embedding with AdamW, and a moving average of the weights."""
    return _kind(ctx, "AdamW", use_ema=True, ema_momentum=0.9)


@feature()
def optimizer_schedule_free_adamw(ctx: Context) -> Outcome:
    """Embedding with schedule-free AdamW."""
    return _kind(ctx, "ScheduleFreeAdamW")


@feature()
def optimizer_nadam(ctx: Context) -> Outcome:
    """Embedding with Nadam, which keeps a product over iterations."""
    return _kind(ctx, "Nadam")


@feature()
def optimizer_adamax(ctx: Context) -> Outcome:
    """Embedding with Adamax, which takes the largest row of each index."""
    return _kind(ctx, "Adamax")


@feature()
def optimizer_adadelta(ctx: Context) -> Outcome:
    """Embedding with Adadelta, which squares its updates too."""
    return _kind(ctx, "Adadelta", learning_rate=1.0)


@feature()
def optimizer_adagrad(ctx: Context) -> Outcome:
    """Embedding with Adagrad."""
    return _kind(ctx, "Adagrad")


@feature()
def optimizer_adafactor(ctx: Context) -> Outcome:
    """Embedding with Adafactor, which looks at rows, columns and whole tables."""
    return _kind(ctx, "Adafactor")


@feature()
def optimizer_rmsprop(ctx: Context) -> Outcome:
    """Embedding with RMSprop, centered, with momentum."""
    return _kind(ctx, "RMSprop", momentum=0.5, centered=True)


@feature()
def optimizer_lion(ctx: Context) -> Outcome:
    """Embedding with Lion, which steps by signs."""
    return _kind(ctx, "Lion")


@feature()
def optimizer_lamb(ctx: Context) -> Outcome:
    """Embedding with LAMB, which looks at whole layers."""
    return _kind(ctx, "Lamb")


@feature()
def optimizer_ftrl(ctx: Context) -> Outcome:
    """Embedding with FTRL, L1 and L2."""
    return _kind(ctx, "Ftrl", l1_regularization_strength=0.01, l2_regularization_strength=0.01)


@feature()
def optimizer_muon(ctx: Context) -> Outcome:
    """Embedding with Muon, which leaves tables to AdamW."""
    return _kind(ctx, "Muon")


@feature()
def optimizer_accumulating_adam(ctx: Context) -> Outcome:
    """Embedding with Adam and gradient_accumulation_steps=2, which accumulates whole tables."""
    return _kind(ctx, "Adam", gradient_accumulation_steps=2)


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


class _Squares:
    """Makes an optimizer of a user's own."""

    @staticmethod
    def make() -> Any:
        class Squares(keras.optimizers.SGD):
            """Steps by the squares of its gradients, and is a kind of SGD."""

            def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
                self.assign_sub(variable, keras.ops.multiply(keras.ops.square(gradient), learning_rate))

        return Squares(0.1)


@feature()
def optimizer_of_ones_own(ctx: Context) -> Outcome:
    """Embedding with a subclass of SGD that squares gradients."""
    return _embedded(ctx, _Squares.make, rows=PARTIAL, epochs=1)
