"""Calls of a model: validate, evaluate, predict, fit again; and what callbacks receive."""

from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import (
    BATCH,
    EVEN,
    PARTIAL,
    compiled,
    in_batches,
    logs,
    prefixed,
    regression,
    sgd,
    state,
    trained,
)


def _model(ctx: Context) -> Any:
    return compiled(ctx, metrics=["mae"])


@feature()
def validation_data(ctx: Context) -> Outcome:
    """validation_data that no batch size divides."""
    x, y = regression(EVEN)
    return trained(ctx, _model(ctx), x, y, validation_data=(x[:13], y[:13]), validation_batch_size=5)


@feature()
def validation_split(ctx: Context) -> Outcome:
    """validation_split=0.3."""
    return trained(ctx, _model(ctx), *regression(EVEN), validation_split=0.3)


@feature()
def validation_dataset(ctx: Context) -> Outcome:
    """A tf.data.Dataset for validation, with validation_steps, every second epoch."""
    x, y = regression(EVEN)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    return trained(ctx, _model(ctx), x, y, epochs=4, validation_data=data, validation_steps=3, validation_freq=2)


@feature()
def evaluate(ctx: Context) -> Outcome:
    """evaluate of NumPy data, with sample weights, of a dataset, and of fewer examples than replicas."""
    model = _model(ctx)
    x, y = regression(PARTIAL)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    weights = np.linspace(0, 2, PARTIAL)
    return {
        "arrays": model.evaluate(x, y, batch_size=BATCH, verbose=0),
        "weighted": model.evaluate(x, y, batch_size=BATCH, sample_weight=weights, verbose=0),
        "dataset": model.evaluate(data, verbose=0),
        "steps": model.evaluate(data, steps=3, verbose=0),
        "one example": model.evaluate(x[:1], y[:1], verbose=0),
    }


@feature()
def predict(ctx: Context) -> Outcome:
    """predict of 36, 41, 37, 5 and 1 examples: all rows, in order, on every worker."""
    model = _model(ctx)
    x, _ = regression(PARTIAL)
    return {f"{rows} examples": model.predict(x[:rows], batch_size=BATCH, verbose=0) for rows in (36, 41, 37, 5, 1)}


@feature()
def predict_datasets(ctx: Context) -> Outcome:
    """predict of a generator, of a dataset and of single steps."""
    model = _model(ctx)
    x, _ = regression(PARTIAL)
    data = tf.data.Dataset.from_tensor_slices(x).batch(7)
    return {
        "generator": model.predict(in_batches(x), verbose=0),
        "dataset": model.predict(data, verbose=0),
        "steps": model.predict(data, steps=2, verbose=0),
    }


@feature()
def fit_again(ctx: Context) -> Outcome:
    """fit, evaluate, fit again from where it stopped, with initial_epoch and another batch size."""
    model = _model(ctx)
    x, y = regression(EVEN)
    first = trained(ctx, model, x, y, epochs=1)
    between = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    second = trained(ctx, model, x, y, epochs=3, initial_epoch=1, batch_size=6)
    return {"between": between, **prefixed("first", first), **second}


@feature()
def compile_again(ctx: Context) -> Outcome:
    """A model that is compiled anew with another optimizer and loss after training."""
    model = _model(ctx)
    x, y = regression(EVEN)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    with ctx.scope():
        model.compile(sgd(clipnorm=0.1), "mae")
    return trained(ctx, model, x, y)


@feature()
def batch_logs(ctx: Context) -> Outcome:
    """The logs that callbacks receive after every batch of training and of validation."""
    heard: dict[str, list[dict[str, float]]] = {"train": [], "test": []}

    class Listen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            heard["train"].append(dict(logs, batch=batch))

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            heard["test"].append(dict(logs, batch=batch))

    x, y = regression(EVEN)
    outcome: dict[str, Any] = trained(
        ctx, _model(ctx), x, y, callbacks=[Listen()], validation_data=(x[:11], y[:11]), validation_batch_size=4
    )
    for kind, entries in heard.items():
        for name in entries[0]:
            outcome |= logs({name: [entry[name] for entry in entries]}, kind)
    return outcome


@feature()
def predict_batch_outputs(ctx: Context) -> Outcome:
    """The outputs that callbacks receive after every batch of predict."""
    outputs: list[np.ndarray] = []
    listen = keras.callbacks.LambdaCallback()
    listen.on_predict_batch_end = lambda batch, logs: outputs.append(np.asarray(logs["outputs"]))
    model = _model(ctx)
    model.predict(regression(PARTIAL)[0], batch_size=BATCH, verbose=0, callbacks=[listen])
    return {f"batch {number}": rows for number, rows in enumerate(outputs)}


@feature()
def evaluate_in_callback(ctx: Context) -> Outcome:
    """A callback that evaluates and predicts with the model at the end of every epoch."""
    x, y = regression(EVEN)
    heard: list[Any] = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            evaluated = self.model.evaluate(x, y, batch_size=BATCH, verbose=0)
            heard.append([*evaluated, float(self.model.predict(x, batch_size=BATCH, verbose=0).sum())])

    model = _model(ctx)
    outcome = trained(ctx, model, x, y, callbacks=[Look()])
    return {**outcome, "heard": heard, **state(ctx, model)}
