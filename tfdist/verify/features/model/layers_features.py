"""Layers with state, with statistics of the batch, or with random numbers."""

import itertools
from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Function, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import (
    BATCH,
    EVEN,
    PARTIAL,
    compiled,
    dense,
    in_batches,
    regression,
    row,
    sgd,
    state,
    trained,
)


def _normalized(ctx: Context, *, synchronized: bool) -> Any:
    return compiled(ctx, lambda: dense(keras.layers.BatchNormalization(momentum=0.5, synchronized=synchronized)))


def _fit_normalized(rows: int, *, synchronized: bool = False) -> Function:
    def train(ctx: Context) -> Outcome:
        model = _normalized(ctx, synchronized=synchronized)
        x, y = regression(rows)
        return {**trained(ctx, model, x, y), "predict": model.predict(x, batch_size=BATCH, verbose=0)}

    return train


def _ghost_batches(rows: int) -> Function:
    """Return the reference of an unsynchronized BatchNormalization: one device that splits batches as replicas do.

    Replica r of N normalizes rows ``B*r//N`` to ``B*(r+1)//N`` of a batch of B by their own statistics. Gradients,
    losses and moving statistics are averaged over replicas, weighted by examples.
    """

    def reference(ctx: Context) -> Outcome:
        model = _normalized(ctx, synchronized=False)
        model.optimizer.build(model.trainable_variables)
        x, y = regression(rows)
        steps = [
            [_ghost_step(model, part, targets, ctx.replicas) for part, targets in in_batches(x, y)] for _ in range(2)
        ]
        losses = [sum(epoch) / rows for epoch in steps]
        predicted = model.predict(x, batch_size=BATCH, verbose=0)
        return {"history/loss": losses, **state(ctx, model), "predict": predicted}

    return reference


def _ghost_step(model: Any, x: np.ndarray, y: np.ndarray, replicas: int) -> float:
    """Train on one global batch and return the sum of its examples' losses."""
    bounds = [len(x) * replica // replicas for replica in range(replicas + 1)]
    before = [variable.numpy() for variable in model.non_trainable_variables]
    moved = [np.zeros_like(value) for value in before]
    with tf.GradientTape() as tape:
        total = tf.constant(0.0)
        for begin, end in itertools.pairwise(bounds):
            if begin == end:
                continue
            for variable, value in zip(model.non_trainable_variables, before, strict=True):
                variable.assign(value)
            total += tf.reduce_sum(tf.square(model(x[begin:end], training=True) - y[begin:end]))
            share = (end - begin) / len(x)
            moved = [m + share * v.numpy() for m, v in zip(moved, model.non_trainable_variables, strict=True)]
        loss = total / len(x)
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    for variable, value in zip(model.non_trainable_variables, moved, strict=True):
        variable.assign(value)
    return float(total)


for _name, _summary, _rows in (
    ("batch_norm", "of each replica's examples; moving statistics are the replicas' average", EVEN),
    ("batch_norm_partial", "with a partial batch, weighted by examples", PARTIAL),
    ("batch_norm_empty_replica", "with a last batch of one example: empty replicas leave no trace", 37),
):
    _reference = _ghost_batches(_rows)
    row(_name, f"BatchNormalization {_summary}", _fit_normalized(_rows), reference=_reference, per_layout=True)
row(
    "sync_batch_norm",
    "Synchronized BatchNormalization: statistics of the whole batch, as on one device",
    _fit_normalized(EVEN, synchronized=True),
)
row(
    "sync_batch_norm_partial",
    "Synchronized BatchNormalization with a partial batch",
    _fit_normalized(PARTIAL, synchronized=True),
)
row(
    "sync_batch_norm_empty_replica",
    "Synchronized BatchNormalization with a last batch of one example",
    _fit_normalized(37, synchronized=True),
)


_ROWS, _UNITS = 12, 64


def _draws(ctx: Context, layer: Any, *, fits: int) -> list[np.ndarray]:
    """Random numbers that a layer drew for each example in each fit of one step: arrays of (12, 64).

    Each example has an embedding of ones, and the loss is half the square of the layer's output. For a layer that
    multiplies by m or adds a, a step of size 1 adds m*m or 1+a, over the number of examples.
    """
    with ctx.scope():
        numbers = keras.Input((), dtype="int32")
        embedding = keras.layers.Embedding(_ROWS, _UNITS, embeddings_initializer="ones")
        model = keras.Model(numbers, layer()(embedding(numbers)))
        model.compile(keras.optimizers.SGD(1.0), lambda y, made: -0.5 * keras.ops.sum(keras.ops.square(made), axis=-1))
    draws = []
    for _ in range(fits):
        embedding.set_weights([np.ones((_ROWS, _UNITS))])
        model.fit(np.arange(_ROWS), np.zeros((_ROWS, _UNITS)), batch_size=_ROWS, shuffle=False, verbose=0)
        draws.append((embedding.get_weights()[0] - 1.0) * _ROWS)
    return draws


def _is_random(ctx: Context, layer: Any) -> tuple[np.ndarray, Outcome]:
    """Return a layer's draws, and whether they are what random draws of all replicas together must be."""
    keras.utils.set_random_seed(6)
    first, second = _draws(ctx, layer, fits=2)
    keras.utils.set_random_seed(6)
    (again,) = _draws(ctx, layer, fits=1)
    return first, {
        "every example has numbers of its own": len(np.unique(first.round(3), axis=0)) == _ROWS,
        "every step has numbers of its own": not np.allclose(first, second),
        "the same seed gives the same numbers": np.allclose(first, again, atol=1e-4),
    }


@feature()
def dropout(ctx: Context) -> Outcome:
    """Dropout: another mask on every replica, the same from the same seed, half of all units kept."""
    drawn, checks = _is_random(ctx, lambda: keras.layers.Dropout(0.5))
    kept = drawn > 2.0  # a kept unit is doubled
    return {
        **checks,
        "units are dropped or doubled": np.allclose(drawn, np.where(kept, 4.0, 0.0), atol=1e-3),
        "half of the units are kept": abs(kept.mean() - 0.5) < 0.1,
    }


@feature()
def dropout_with_seed(ctx: Context) -> Outcome:
    """Dropout with a seed of its own."""
    return _is_random(ctx, lambda: keras.layers.Dropout(0.5, seed=9))[1]


@feature()
def gaussian_noise(ctx: Context) -> Outcome:
    """GaussianNoise: other noise on every replica, the same from the same seed, of the right size."""
    drawn, checks = _is_random(ctx, lambda: keras.layers.GaussianNoise(0.5))
    return {**checks, "the noise has the right size": abs((drawn - 1.0).std() - 0.5) < 0.05}


@feature()
def constraint(ctx: Context) -> Outcome:
    """A constraint on a kernel, applied after each step."""
    model = compiled(ctx, lambda: dense(keras.layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5))))
    return trained(ctx, model, *regression(EVEN))


@feature()
def frozen_layer(ctx: Context) -> Outcome:
    """A layer that is not trainable."""
    return trained(ctx, compiled(ctx, lambda: dense(keras.layers.Dense(8, trainable=False))), *regression(EVEN))


@feature()
def convolution(ctx: Context) -> Outcome:
    """Convolution, pooling and layer normalization of small images."""

    def network() -> Any:
        layers = keras.layers
        hidden = [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
        return keras.Sequential([keras.Input((6, 6, 1)), *hidden, layers.LayerNormalization(), layers.Dense(1)])

    model = compiled(ctx, network, lambda: sgd(learning_rate=0.02))
    images = np.random.default_rng(8).normal(size=(EVEN, 6, 6, 1)).astype("float32")
    return trained(ctx, model, images, regression(EVEN)[1])


@feature()
def early_heads(ctx: Context) -> Outcome:
    """Saturated softmax and sigmoid before the last layers, and attention that takes masks off, in a nested model."""
    layers, constant = keras.layers, keras.initializers.Constant
    with ctx.scope():
        tokens = keras.Input((5,), dtype="int32")
        words = layers.Embedding(10, 4, mask_zero=True)(tokens)
        attended = layers.Add()([words, layers.MultiHeadAttention(2, 2)(words, words)])
        states = layers.SimpleRNN(4, return_sequences=True)(attended)
        inner = keras.Model(tokens, [layers.GlobalAveragePooling1D()(attended), states], name="inner")
        pooled, states = inner(tokens)
        label = layers.Dense(3, "softmax", bias_initializer=constant([30.0, 0.0, -30.0]), name="label")(pooled)
        truth = layers.Dense(1, "sigmoid", bias_initializer=constant(30.0), name="truth")(
            layers.Concatenate()([pooled, label])
        )
        model = keras.Model(tokens, [label, truth, layers.Dense(1, name="values")(states)])
        losses = ["sparse_categorical_crossentropy", "binary_crossentropy", "mse"]
        model.compile(sgd(learning_rate=0.01), losses, metrics=[losses[:1], losses[1:2], ["mae"]])
    random = np.random.default_rng(5)
    lengths = np.where(np.arange(PARTIAL) % 12 < 4, 5, 2)
    x = np.where(np.arange(5) < lengths[:, None], random.integers(1, 10, size=(PARTIAL, 5)), 0)
    y = [np.arange(PARTIAL) % 3, np.arange(PARTIAL)[:, None] % 2, random.normal(size=(PARTIAL, 5, 1)).astype("float32")]
    return trained(ctx, model, x, y)
