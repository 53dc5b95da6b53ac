"""Training loops: custom train_step, several steps at once, eager, compiled, batch by batch."""

from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import (
    BATCH,
    EVEN,
    PARTIAL,
    compiled,
    dense,
    logs,
    of_kind,
    prefixed,
    regression,
    sgd,
    state,
    trained,
)


@feature()
def train_step_of_the_guide(ctx: Context) -> Outcome:
    """A train_step with a loss, a Mean tracker and a metric of its own, as Keras' guide writes it."""

    class Guide(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.loss_tracker = keras.metrics.Mean(name="loss")
            self.mae = keras.metrics.MeanAbsoluteError(name="mae")
            self.loss_fn = keras.losses.MeanSquaredError()

        @property
        def metrics(self) -> list[Any]:
            return [self.loss_tracker, self.mae]

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.loss_fn(y, predicted)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.loss_tracker.update_state(loss)
            self.mae.update_state(y, predicted)
            return {"loss": self.loss_tracker.result(), "mae": self.mae.result()}

    return trained(ctx, compiled(ctx, lambda: of_kind(Guide), loss=None), *regression(EVEN))


@feature()
def train_step_with_compute_loss(ctx: Context) -> Outcome:
    """A train_step and a test_step that call compute_loss and update the compiled metrics, with a partial batch."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=predicted)
            tracker = next(metric for metric in self.metrics if metric.name == "loss")
            tracker.update_state(loss, sample_weight=keras.ops.shape(x)[0])
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return self.compute_metrics(x, y, predicted)

    return trained(ctx, compiled(ctx, lambda: of_kind(Own), metrics=["mae"]), *regression(PARTIAL))


@feature()
def steps_per_execution(ctx: Context) -> Outcome:
    """steps_per_execution=3 with four batches, the last one partial."""
    model = compiled(ctx, metrics=["mae"], steps_per_execution=3)
    x, y = regression(PARTIAL)
    outcome = trained(ctx, model, x, y, validation_data=(x[:11], y[:11]))
    return {**outcome, "predict": model.predict(x, batch_size=BATCH, verbose=0)}


@feature()
def run_eagerly(ctx: Context) -> Outcome:
    """run_eagerly=True."""
    return trained(ctx, compiled(ctx, metrics=["mae"], run_eagerly=True), *regression(EVEN))


@feature()
def jit_compile(ctx: Context) -> Outcome:
    """jit_compile=True."""
    return trained(ctx, compiled(ctx, jit_compile=True), *regression(EVEN))


@feature()
def jit_compile_own_step(ctx: Context) -> Outcome:
    """jit_compile=True with a train_step of one's own, several steps at once and clipping."""

    class Own(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x, y, predicted)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.metrics[0].update_state(loss, sample_weight=tf.shape(x)[0])
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": self.metrics[0].result()}

    model = compiled(
        ctx, lambda: Own(dense().layers), lambda: sgd(global_clipnorm=0.5), jit_compile=True, steps_per_execution=3
    )
    return trained(ctx, model, *regression(PARTIAL))


@feature()
def single_batches(ctx: Context) -> Outcome:
    """train_on_batch, test_on_batch and predict_on_batch, with five examples and with eight."""
    model = compiled(ctx, metrics=["mae"])
    x, y = regression(13)
    outcome: dict[str, Any] = {}
    for name, rows in (("five", slice(0, 5)), ("eight", slice(5, 13))):
        outcome |= logs(model.train_on_batch(x[rows], y[rows], return_dict=True), f"train {name}")
        outcome |= logs(model.test_on_batch(x[rows], y[rows], return_dict=True), f"test {name}")
        outcome[f"predict {name}"] = np.asarray(model.predict_on_batch(x[rows]))
    return {**outcome, **state(ctx, model)}


@feature()
def several_strategies(ctx: Context) -> Outcome:
    """Three strategies in one process, one after the other and in turn, with models of different sizes."""
    outcome: dict[str, Any] = {}
    models = []
    for units in (8, 5, 11):
        other = ctx.another()
        with other.scope():
            model = dense(units=units)
            model.compile(sgd(), "mse")
        models.append((other, model))
        outcome |= prefixed(f"{units} units", trained(other, model, *regression(24), epochs=1))
    for other, model in models:
        again = trained(other, model, *regression(24), epochs=1)
        outcome |= prefixed(f"again, {model.count_params()} parameters", again)
    return outcome


@feature()
def several_models(ctx: Context) -> Outcome:
    """Two models under one strategy, trained in turn."""
    with ctx.scope():
        models = [dense(units=units) for units in (8, 5)]
        for model in models:
            model.compile(sgd(), "mse")
    x, y = regression(24)
    outcome: dict[str, Any] = {}
    for turn in range(2):
        for number, model in enumerate(models):
            outcome |= prefixed(f"turn {turn}, model {number}", trained(ctx, model, x, y, epochs=1))
    return outcome
