"""Optimizers: clipping, accumulation, averages, decay, schedules."""

from typing import Any

import numpy as np

import tfdist.callbacks
import tfdist.optimizers
from tfdist.verify.feature import Context, Function, Outcome, feature, keras
from tfdist.verify.feature_tasks import EVEN, PARTIAL, compiled, regression, row, sgd, trained


def _fit(optimizer: Any, *, rows: int = EVEN, scale: float = 1.0) -> Function:
    """Train with an optimizer, made by a function inside the scope; large targets make large gradients."""

    def train(ctx: Context) -> Outcome:
        x, y = regression(rows)
        return trained(ctx, compiled(ctx, optimizer=optimizer), x, y * scale)

    return train


def _sgd(**options: Any) -> Function:
    return _fit(lambda: sgd(**options))


def _clipped(**options: Any) -> Function:
    return _fit(lambda: sgd(**options), scale=10)


def _decayed() -> Any:
    adamw = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    adamw.exclude_from_weight_decay(var_names=["bias"])
    return adamw


def _lars() -> Any:
    return tfdist.optimizers.LARS(tfdist.optimizers.Warmup(2.0, 4), weight_decay=0.01, trust_coefficient=0.05)


def _scheduled() -> Any:
    return sgd(learning_rate=keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.5))


row(
    "clipnorm",
    "Clipnorm: each gradient's norm is limited, after the replicas' gradients are summed",
    _clipped(clipnorm=0.5),
)
row("global_clipnorm", "Global_clipnorm: the norm over all gradients is limited", _clipped(global_clipnorm=0.5))
row("clipvalue", "Clipvalue: each element of the gradients is limited", _clipped(clipvalue=0.1))
row(
    "gradient_accumulation",
    "Gradient_accumulation_steps=2, with a partial batch",
    _fit(lambda: sgd(gradient_accumulation_steps=2), rows=PARTIAL),
)
row(
    "ema_overwrite",
    "Moving average of the weights, written over them every two steps",
    _sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
)
row("ema", "Moving average of the weights, written over them when fit ends", _sgd(use_ema=True, ema_momentum=0.9))
row("weight_decay", "AdamW with weight decay on all weights but the biases", _fit(_decayed))
row("lars", "tfdist's LARS with weight decay, after a warm-up", _fit(_lars))
row("lamb", "Keras' Lamb", _fit(lambda: keras.optimizers.Lamb(0.02)))
row("learning_rate_schedule", "A learning rate that decays with the iterations", _fit(_scheduled))
row(
    "accumulation_with_clipping",
    "gradient_accumulation_steps=3 with global_clipnorm: accumulated first, then clipped",
    _clipped(gradient_accumulation_steps=3, global_clipnorm=0.5),
)


def _embedded(optimizer: Any, *, rows: int = PARTIAL, **fit: Any) -> Function:
    """Train a table of which every batch asks for each row several times, and a kernel."""

    def train(ctx: Context) -> Outcome:
        with ctx.scope():
            layers = [keras.layers.Embedding(7, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers])
            model.compile(optimizer(), "mse")
            # On one device Keras builds inside the first step, where a slot that begins as its weight begins as zero.
            model.optimizer.build(model.trainable_variables)
        numbers = np.stack([np.arange(rows) % 7, np.arange(rows) // 5 % 7], axis=1)
        return trained(ctx, model, numbers, regression(rows)[1], **fit)

    return train


def _kind(name: str, **options: Any) -> Function:
    """Train an embedding and a kernel: an optimizer that squares gradients squares each row of a lookup by itself."""
    options = {"learning_rate": 0.01, **options}
    return _embedded(lambda: getattr(keras.optimizers, name)(**options), epochs=1)


row(
    "sparse_gradients",
    "Embedding: gradients of single rows, the same row on several replicas",
    _embedded(sgd, rows=EVEN),
)
row(
    "sparse_gradients_clipped",
    "Embedding with global_clipnorm and Adam",
    _embedded(lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1), rows=EVEN),
)


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
    return _embedded(lambda: wrap(keras.optimizers.Adam(0.01)), epochs=1, callbacks=callbacks)(ctx)


def _several() -> Any:
    optimizers = keras.optimizers
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(sgd(), {".*embeddings": optimizers.Adam(0.01)}))


row(
    "optimizer_several",
    "Embedding with Adam, and the kernel with SGD, in one MultiOptimizer",
    _embedded(_several, epochs=1),
)
row(
    "optimizer_distributed",
    "Embedding with Adam inside tfdist's DistributedOptimizer",
    _embedded(lambda: tfdist.optimizers.DistributedOptimizer(keras.optimizers.Adam(0.01))),
)


@feature()
def optimizer_of_ones_own(ctx: Context) -> Outcome:
    """Embedding with a subclass of SGD that squares gradients."""

    class Squares(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign_sub(variable, keras.ops.multiply(keras.ops.square(gradient), learning_rate))

    return _embedded(lambda: Squares(0.1), epochs=1)(ctx)
