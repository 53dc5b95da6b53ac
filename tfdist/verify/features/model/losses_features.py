"""Losses and their weights: reductions, masks, sample and class weights, penalties, losses of one's own."""

from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Function, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import (
    BATCH,
    EVEN,
    PARTIAL,
    classification,
    compiled,
    dense,
    of_kind,
    regression,
    row,
    sgd,
    trained,
)


def _fit(
    ctx: Context, loss: Any, *, rate: float = 0.1, metrics: Any = None, sample_weight: np.ndarray | None = None
) -> Outcome:
    model = compiled(ctx, optimizer=lambda: sgd(learning_rate=rate), loss=loss, weighted_metrics=metrics)
    x, y = regression(PARTIAL)
    outcome = trained(ctx, model, x, y, sample_weight=sample_weight)
    return {**outcome, "evaluate": model.evaluate(x, y, sample_weight=sample_weight, batch_size=BATCH, verbose=0)}


def _reduced(reduction: str, **fit: Any) -> Function:
    return lambda ctx: _fit(ctx, keras.losses.MeanSquaredError(reduction=reduction), **fit)


#: some are zero and some are large, so that replicas have different sums
_UNEVEN = (np.arange(PARTIAL) % 4 * np.linspace(0.1, 3.0, PARTIAL)).astype("float32")

row("reduction_sum", 'reduction="sum", with a partial batch', _reduced("sum", rate=0.01))
row("reduction_mean", 'reduction="mean", which Keras takes over all elements', _reduced("mean", sample_weight=_UNEVEN))
row(
    "reduction_mean_with_sample_weight",
    'reduction="mean_with_sample_weight": divided by the weights of the whole batch',
    _reduced("mean_with_sample_weight", sample_weight=_UNEVEN),
)
row(
    "reduction_mean_without_sample_weight",
    'reduction="mean_with_sample_weight" and no sample weights',
    _reduced("mean_with_sample_weight"),
)


@feature()
def reduction_none(ctx: Context) -> Outcome:
    """reduction="none" in a train_step that takes the mean itself."""

    class Mean(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                per_example = keras.losses.MeanSquaredError(reduction="none")(y, self(x, training=True))
                loss = tf.reduce_mean(per_example)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    return trained(ctx, compiled(ctx, lambda: of_kind(Mean), loss=None), *regression(EVEN))


@feature()
def sample_weight(ctx: Context) -> Outcome:
    """Sample weights with zeros, which replicas share unevenly; a weighted metric."""
    return _fit(ctx, "mse", sample_weight=_UNEVEN, metrics=["mae"])


@feature()
def class_weight(ctx: Context) -> Outcome:
    """class_weight, with a partial batch."""
    loss = "sparse_categorical_crossentropy"
    model = compiled(ctx, lambda: dense(outputs=3, activation="softmax"), loss=loss, weighted_metrics=["accuracy"])
    return trained(ctx, model, *classification(PARTIAL), class_weight={0: 0.2, 1: 3.0, 2: 1.0})


@feature()
def ignore_class(ctx: Context) -> Outcome:
    """A cross-entropy that ignores one class: the examples that count are spread unevenly over replicas."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2)
    return trained(ctx, compiled(ctx, lambda: dense(outputs=3), loss=loss), *classification(PARTIAL))


@feature()
def masked_sequences(ctx: Context) -> Outcome:
    """Embedding with mask_zero, LSTM, a target for every time step: sequences of very different lengths."""
    with ctx.scope():
        tokens = keras.Input((5,), dtype="int32")
        hidden = keras.layers.Embedding(10, 4, mask_zero=True)(tokens)
        hidden = keras.layers.LSTM(4, return_sequences=True)(hidden)
        model = keras.Model(tokens, keras.layers.Dense(1)(hidden))
        model.compile(sgd(), "mse", weighted_metrics=["mae"])
    random = np.random.default_rng(5)
    lengths = np.where(np.arange(PARTIAL) % 12 < 4, 5, 1)
    x = np.where(np.arange(5) < lengths[:, None], random.integers(1, 10, size=(PARTIAL, 5)), 0)
    return trained(ctx, model, x, random.normal(size=(PARTIAL, 5, 1)).astype("float32"))


@feature()
def kernel_regularizer(ctx: Context) -> Outcome:
    """L2 on a kernel: added once, not once per replica."""
    model = compiled(ctx, lambda: dense(keras.layers.Dense(8, kernel_regularizer=keras.regularizers.L2(0.1))))
    return trained(ctx, model, *regression(PARTIAL))


@feature()
def activity_regularizer(ctx: Context) -> Outcome:
    """L2 on activations, a mean over the examples of the batch."""
    model = compiled(ctx, lambda: dense(keras.layers.Dense(8, activity_regularizer=keras.regularizers.L2(0.1))))
    return trained(ctx, model, *regression(PARTIAL))


@feature()
def add_loss(ctx: Context) -> Outcome:
    """A layer that adds a loss from its inputs."""

    class Penalty(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    return trained(ctx, compiled(ctx, lambda: dense(Penalty())), *regression(PARTIAL))


@feature()
def compute_loss(ctx: Context) -> Outcome:
    """A model with a compute_loss of its own."""

    class Own(keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            return keras.ops.mean(keras.ops.abs(y - y_pred) + 0.1 * keras.ops.square(y_pred))

    return trained(ctx, compiled(ctx, lambda: of_kind(Own), loss=None, metrics=["mae"]), *regression(PARTIAL))


@feature()
def label_smoothing(ctx: Context) -> Outcome:
    """Categorical cross-entropy with label smoothing, from logits, with a partial batch."""
    with ctx.scope():
        model = dense(outputs=3)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        model.compile(sgd(), loss, metrics=["accuracy"])
    x, labels = classification(PARTIAL)
    return trained(ctx, model, x, np.eye(3, dtype="float32")[labels])


@feature()
def function_that_sums(ctx: Context) -> Outcome:
    """A loss function of one's own that returns the sum over the batch as one number."""
    return _fit(ctx, lambda y, p: keras.ops.sum(keras.ops.square(y - p)), rate=0.01)


@feature()
def function_that_averages(ctx: Context) -> Outcome:
    """A loss function of one's own that returns the mean over the batch as one number; one that sums beside it."""
    with ctx.scope():
        inner = dense()
        model = keras.Model(inner.inputs, {"one": inner.outputs[0], "two": keras.layers.Dense(1)(inner.outputs[0])})
        mean = lambda y, p: keras.ops.mean(keras.ops.square(y - p))  # noqa: E731
        model.compile(sgd(learning_rate=0.01), {"one": mean, "two": lambda y, p: keras.ops.sum(keras.ops.abs(y - p))})
    x, y = regression(PARTIAL)
    return trained(ctx, model, x, {"one": y, "two": y})


@feature()
def compute_loss_that_sums(ctx: Context) -> Outcome:
    """A model with a compute_loss of its own that is a sum over the batch."""

    class Own(keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            return keras.ops.sum(keras.ops.abs(y - y_pred))

    model = compiled(ctx, lambda: of_kind(Own), lambda: sgd(learning_rate=0.01), None, metrics=["mae"])
    return trained(ctx, model, *regression(PARTIAL))
