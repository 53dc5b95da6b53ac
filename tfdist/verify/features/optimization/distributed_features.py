"""`tfdist.optimizers.DistributedOptimizer`: accumulation, loss scales, and what travels."""

import itertools
from typing import Any

import numpy as np

import tfdist.callbacks
import tfdist.optimizers
from tfdist.verify.feature import Context, Outcome, feature, keras
from tfdist.verify.feature_tasks import (
    BATCH,
    EVEN,
    compiled,
    deep,
    dense,
    losses_and_weights,
    regression,
    sgd,
    state,
    trained,
    variables,
)

# Float16 rounds a gradient to 2^-11 of itself on every replica, and their sum once more. The weights of these models
# move by about 1 in all, of which 2^-10 is 1e-3. bfloat16 has three bits less.
_FLOAT16, _BFLOAT16 = 2e-3, 1e-2

# Micro-batches of 4, the last one of 1: three make the batches of 12, 12 and 9 of one device.
_MICRO, _ACCUMULATED, _K = 4, 33, 3


def _optimizer(inner: Any, **options: Any) -> Any:
    return tfdist.optimizers.DistributedOptimizer(inner, **options)


def _decayed() -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.8)
    return sgd(learning_rate=rate, weight_decay=0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4)


def _big_batches(ctx: Context) -> Outcome:
    with ctx.scope():
        model = dense()
        inner = _decayed()
        inner.global_clipnorm = 0.5
        model.compile(inner, "mse")
    x, y = regression(_ACCUMULATED)
    return trained(ctx, model, x, y * 10, batch_size=_MICRO * _K)


@feature(reference=_big_batches)
def accumulate_steps(ctx: Context) -> Outcome:
    """accumulate_steps=3 with partial micro-batches, clipping, decay, averages and a schedule, beside the big batch."""
    with ctx.scope():
        model = dense()
        inner = _decayed()
        model.compile(_optimizer(inner, accumulate_steps=_K, global_clipnorm=0.5), "mse", steps_per_execution=2)
    x, y = regression(_ACCUMULATED)
    result = trained(ctx, model, x, y * 10, batch_size=_MICRO)
    own = {name: value for name, value in result.items() if not name.startswith("optimizer/")}
    return {**own, **variables(ctx, inner.variables, "optimizer")}


@feature(per_layout=True, tolerance=_FLOAT16)
def accumulation_in_float16_with_a_bad_replica(ctx: Context) -> Outcome:
    """mixed_float16, a dynamic scale, two micro-batches; the last replica has an infinite example in one."""
    keras.config.set_dtype_policy("mixed_float16")
    with ctx.scope():
        model = deep()
        inner = sgd(learning_rate=0.02)
        model.compile(_optimizer(inner, accumulate_steps=2, loss_scale="dynamic", growth_steps=2), "mse")
    x, y = regression(4 * BATCH)
    x[BATCH - 1, 0] = np.inf
    logger = tfdist.callbacks.LossScaleLogger()
    result = trained(ctx, model, x, y, callbacks=[logger])
    return {**result, "iterations": int(keras.ops.convert_to_numpy(inner.iterations))}


@feature(tolerance=_BFLOAT16)
def accumulation_in_bfloat16(ctx: Context) -> Outcome:
    """mixed_bfloat16 with two micro-batches, without a scale."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = compiled(ctx, deep, lambda: _optimizer(sgd(learning_rate=0.02), accumulate_steps=2))
    return trained(ctx, model, *regression(4 * BATCH))


def _on_the_wire(ctx: Context, dtype: str) -> Outcome:
    model = compiled(
        ctx, optimizer=lambda: _optimizer(sgd(learning_rate=1e-6, momentum=0.0), wire_dtype=dtype, loss_scale=1.0)
    )
    x, y = regression(EVEN)
    logger = tfdist.callbacks.LossScaleLogger()
    result = trained(ctx, model, x, 3e4 + y, callbacks=[logger])
    return {name: value for name, value in result.items() if name != "history/loss"}  # 9e8


@feature(tolerance=_FLOAT16)
def wire_float16(ctx: Context) -> Outcome:
    """Gradients of large numbers that travel as float16; a sum of the replicas' would overflow."""
    return _on_the_wire(ctx, "float16")


@feature(tolerance=_BFLOAT16)
def wire_bfloat16(ctx: Context) -> Outcome:
    """Gradients of large numbers that travel as bfloat16."""
    return _on_the_wire(ctx, "bfloat16")


# A sum is clipped, and not the mean that it is made of: with BATCH times the rate, means are clipped at a BATCH-th.
_RATE, _LIMIT = 0.01, 0.6


def _means_clipped_at_their_part(ctx: Context) -> Outcome:
    model = compiled(ctx, optimizer=lambda: sgd(learning_rate=BATCH * _RATE, clipvalue=_LIMIT / BATCH))
    return losses_and_weights(trained(ctx, model, *regression(EVEN)))


@feature(reference=_means_clipped_at_their_part)
def sum_clipped_and_scaled(ctx: Context) -> Outcome:
    """reduction="sum", clipvalue and loss_scale=64, beside plain SGD with the batch's multiple of the rate."""
    options = {"reduction": "sum", "clipvalue": _LIMIT, "loss_scale": 64}
    model = compiled(ctx, optimizer=lambda: _optimizer(sgd(learning_rate=_RATE), **options))
    return losses_and_weights(trained(ctx, model, *regression(EVEN)))


def _adasum_in_numpy(ctx: Context) -> Outcome:
    """Train on one device by the gradients of each replica's rows, put together by the formula in NumPy."""
    import tensorflow as tf

    model = dense()
    optimizer = sgd()
    x, y = regression(EVEN)

    def gradients(first: int, last: int) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x[first:last]) - y[first:last]) ** 2)
        return [np.asarray(g, np.float64) for g in tape.gradient(loss, model.trainable_variables)]

    for begin in range(0, EVEN, BATCH):
        edges = [begin + BATCH * replica // ctx.replicas for replica in range(ctx.replicas + 1)]
        each = [gradients(first, last) for first, last in itertools.pairwise(edges)]
        met = [_adasum([own[i] for own in each]) for i in range(len(each[0]))]
        optimizer.apply([tf.constant(g, tf.float32) for g in met], model.trainable_variables)
    return variables(ctx, model.weights, "weights")


def _adasum(gradients: list[np.ndarray]) -> np.ndarray:
    def combined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        dot = np.sum(a * b)
        return a * (1 - dot / (2 * np.sum(a * a))) + b * (1 - dot / (2 * np.sum(b * b)))

    while len(gradients) > 1:
        odd = gradients[-1:] if len(gradients) % 2 else []
        gradients = [combined(a, b) for a, b in zip(gradients[::2], gradients[1::2], strict=False)] + odd
    return gradients[0]


@feature(per_layout=True, reference=_adasum_in_numpy, may_refuse=True)
def adasum(ctx: Context) -> Outcome:
    """reduction="adasum", beside its formula in NumPy over the gradients of each replica's rows."""
    model = compiled(ctx, optimizer=lambda: _optimizer(sgd(), reduction="adasum"))
    trained(ctx, model, *regression(EVEN), epochs=1)
    return {name: value for name, value in state(ctx, model).items() if name.startswith("weights/")}
