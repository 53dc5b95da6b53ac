"""Metrics over batches that replicas share unevenly."""

from typing import Any

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import (
    BATCH,
    PARTIAL,
    classification,
    compiled,
    dense,
    logs,
    of_kind,
    regression,
    sgd,
    trained,
)


def _fit(ctx: Context, model: Any, x: Any, y: Any) -> Outcome:
    outcome = trained(ctx, model, x, y, validation_data=(x[:17], y[:17]))
    return {**outcome, **logs(model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True), "evaluate")}


@feature()
def metrics_of_classes(ctx: Context) -> Outcome:
    """Accuracy and top-2 accuracy of three classes."""
    with ctx.scope():
        model = dense(outputs=3, activation="softmax")
        top = keras.metrics.SparseTopKCategoricalAccuracy(k=2)
        model.compile(sgd(), "sparse_categorical_crossentropy", metrics=["accuracy", top])
    return _fit(ctx, model, *classification(PARTIAL))


@feature()
def metrics_of_two_classes(ctx: Context) -> Outcome:
    """AUC, F1, precision, recall and mean intersection over union."""
    with ctx.scope():
        model = dense(activation="sigmoid")
        metrics = [
            keras.metrics.AUC(num_thresholds=20),
            keras.metrics.F1Score(threshold=0.5),
            keras.metrics.Precision(),
            keras.metrics.Recall(),
            keras.metrics.BinaryIoU(),
        ]
        model.compile(sgd(), "binary_crossentropy", metrics=metrics)
    x, labels = classification(PARTIAL, classes=2)
    return _fit(ctx, model, x, labels[:, None].astype("float32"))


@feature()
def metrics_of_values(ctx: Context) -> Outcome:
    """R2, root mean squared error and mean absolute error."""
    with ctx.scope():
        model = dense()
        metrics = [keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError(), keras.metrics.MeanAbsoluteError()]
        model.compile(sgd(), "mse", metrics=metrics)
    return _fit(ctx, model, *regression(PARTIAL))


@feature()
def mean_iou(ctx: Context) -> Outcome:
    """MeanIoU, whose state is a confusion matrix."""
    with ctx.scope():
        model = dense(outputs=3, activation="softmax")
        metric = keras.metrics.OneHotMeanIoU(num_classes=3)
        model.compile(sgd(), "categorical_crossentropy", metrics=[metric])
    x, labels = classification(PARTIAL)
    return _fit(ctx, model, x, keras.utils.to_categorical(labels, 3))


@feature()
def own_metric(ctx: Context) -> Outcome:
    """A metric of one's own: the share of examples that are off by more than a half; one like it is never reset."""

    class Off(keras.metrics.Metric):
        def __init__(self, name: str = "off", first: str = "zeros") -> None:
            super().__init__(name=name)
            self.wrong = self.add_weight(name="wrong", initializer="zeros")
            self.all = self.add_weight(name="all", initializer=first)

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            off = keras.ops.cast(keras.ops.abs(y_true - y_pred) > 0.5, "float32")
            self.wrong.assign_add(keras.ops.sum(off))
            self.all.assign_add(keras.ops.cast(keras.ops.size(off), "float32"))

        def result(self) -> Any:
            return self.wrong / self.all

    class Ever(Off):
        def reset_state(self) -> None:
            """Leave the sums, which begin at one, so that nothing is divided by zero."""

    with ctx.scope():
        model = dense()
        model.compile(sgd(), "mse", metrics=[Off(), Ever("ever", first="ones")])
    return _fit(ctx, model, *regression(PARTIAL))


def _fit_counting(ctx: Context, made: Any) -> Outcome:
    """Train a model with precision, recall, F1 and a mean, whose steps log ``made(model)``."""

    class Counting(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.precision, self.recall = keras.metrics.Precision(name="p"), keras.metrics.Recall(name="r")
            self.f1, self.average = keras.metrics.F1Score(threshold=0.5, name="f"), keras.metrics.Mean(name="m")

        def count(self, x: Any, y: Any, *, training: bool) -> Any:
            predicted = self(x, training=training)
            for metric in (self.precision, self.recall, self.f1):
                metric.update_state(y, predicted)
            loss = keras.ops.mean(keras.losses.binary_crossentropy(y, predicted))
            self.average.update_state(loss)
            return loss

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = self.count(*data, training=True)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return made(self)

        def test_step(self, data: Any) -> dict[str, Any]:
            self.count(*data, training=False)
            return made(self)

    model = compiled(ctx, lambda: of_kind(Counting, activation="sigmoid"), loss=None)
    x, labels = classification(PARTIAL, classes=2)
    return _fit(ctx, model, x, labels[:, None].astype("float32"))


@feature()
def logs_under_other_names(ctx: Context) -> Outcome:
    """Results of metrics logged under other names than theirs, in a train_step and in a test_step of one's own."""
    return _fit_counting(ctx, lambda m: {"loss": m.average.result(), "hits": m.recall.result(), "f": m.f1.result()[0]})


@feature()
def logs_made_of_metrics(ctx: Context) -> Outcome:
    """Logs that are computed from the results of several metrics: F1 of precision and recall, a sum, a multiple."""

    def made(model: Any) -> dict[str, Any]:
        precision, recall = model.precision.result(), model.recall.result()
        f1 = 2.0 * precision * recall / (precision + recall + 1e-7)
        return {"f1": f1, "sum": precision + model.average.result(), "double": 2.0 * model.average.result()}

    return _fit_counting(ctx, made)


@feature()
def metrics_of_compute_metrics(ctx: Context) -> Outcome:
    """A compute_metrics of one's own that adds a metric, and one under another name, as Keras' docstring has it."""

    class Own(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.far = keras.metrics.MeanSquaredError(name="far")

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
            found = super().compute_metrics(x, y, y_pred, sample_weight)
            self.far.update_state(y, y_pred)
            return {**found, "far": self.far.result(), "root": keras.ops.sqrt(self.far.result())}

    model = compiled(ctx, lambda: of_kind(Own), metrics=["mae"])
    return _fit(ctx, model, *regression(PARTIAL))
