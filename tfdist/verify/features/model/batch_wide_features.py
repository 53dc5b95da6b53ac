"""Models that look at the whole batch: states, losses that layers add, losses and metrics that compare examples."""

from typing import Any

from tfdist.verify.feature import Context, Outcome, feature, keras
from tfdist.verify.feature_tasks import BATCH, PARTIAL, WIDTH, dense, regression, sgd, trained


def _fit(ctx: Context, *layers: Any, loss: Any = "mse", metrics: Any = None, outputs: Any = "softplus") -> Outcome:
    with ctx.scope():
        model = dense(*(make() for make in layers), activation=outputs)
        model.compile(sgd(learning_rate=0.02), loss, metrics=metrics)
    x, y = regression(PARTIAL)
    outcome = trained(ctx, model, x, abs(y))
    return {**outcome, "evaluate": model.evaluate(x, abs(y), batch_size=BATCH, verbose=0)}


@feature()
def states_of_layers(ctx: Context) -> Outcome:
    """A layer of one's own that counts, adds up, forgets, averages, and keeps a maximum, a minimum and the last row."""

    class Keeps(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            def state(name: str, dtype: str = "float32", **options: Any) -> Any:
                size = () if dtype != "float32" else (shape[-1],)
                return self.add_weight(
                    shape=size, dtype=dtype, initializer="zeros", trainable=False, name=name, **options
                )

            self.examples, self.steps = state("examples", "int64"), state("steps", "int32")
            self.total, self.faded, self.moving = state("total"), state("faded"), state("moving")
            self.declared = state("declared", aggregation="sum")
            self.largest, self.smallest, self.last = state("largest"), state("smallest"), state("last")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                ops, total = keras.ops, keras.ops.sum(inputs, axis=0)
                self.examples.assign_add(ops.cast(ops.shape(inputs)[0], "int64"))
                self.steps.assign_add(1)
                self.total.assign_add(total)
                self.declared.assign_add(total)
                self.faded.assign(0.75 * self.faded + 0.25 * total)
                self.moving.assign(self.moving + 0.1 * (ops.mean(inputs, axis=0) - self.moving))
                self.largest.assign(ops.maximum(self.largest, ops.max(inputs, axis=0)))
                self.smallest.assign(ops.minimum(self.smallest, ops.min(inputs, axis=0)))
                self.last.assign(inputs[-1])
            return inputs

    return _fit(ctx, Keeps)


@feature()
def codebook(ctx: Context) -> Outcome:
    """A codebook of moving counts and sums, which the step then uses, as in a VQ-VAE."""

    class Codebook(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            def state(name: str, size: tuple[int, ...]) -> Any:
                first = keras.initializers.RandomNormal(seed=5) if name != "counts" else "ones"
                return self.add_weight(shape=size, initializer=first, trainable=False, name=name)

            self.counts = state("counts", (3,))
            self.sums, self.entries = state("sums", (3, shape[-1])), state("entries", (3, shape[-1]))

        def call(self, inputs: Any, training: bool = False) -> Any:
            ops = keras.ops
            distances = ops.sum(ops.square(inputs[:, None] - self.entries[None]), axis=-1)
            nearest = ops.one_hot(ops.argmin(distances, axis=-1), 3, dtype="float32")
            if training:
                self.counts.assign(0.75 * self.counts + 0.25 * ops.sum(nearest, axis=0))
                self.sums.assign(0.75 * self.sums + 0.25 * ops.matmul(ops.transpose(nearest), inputs))
                self.entries.assign(self.sums / (self.counts[:, None] + 0.01))
            return inputs + 0.1 * ops.matmul(nearest, self.entries)

    return _fit(ctx, Codebook)


@feature()
def added_losses(ctx: Context) -> Outcome:
    """Layers that add a sum over examples, a mean, and an activity regularizer of one's own."""

    class Penalty(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            squares = keras.ops.square(inputs)
            self.add_loss(0.02 * keras.ops.sum(squares))
            self.add_loss(0.1 * keras.ops.mean(squares))
            return inputs

    class Regularizer(keras.regularizers.Regularizer):
        def __call__(self, x: Any) -> Any:
            return 0.1 * keras.ops.sum(keras.ops.abs(x))

    return _fit(ctx, Penalty, lambda: keras.layers.Dense(4, activity_regularizer=Regularizer()))


@feature(may_refuse=True)
def loss_of_the_whole_batch(ctx: Context) -> Outcome:
    """Keras' Dice over all examples, and a loss class of one's own that compares examples."""

    class Contrast(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.mean(keras.ops.square(y_pred - keras.ops.mean(y_pred, axis=0) - y_true), axis=-1)

    with ctx.scope():
        inputs = keras.Input((WIDTH,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        outputs = {name: keras.layers.Dense(1, activation="softplus", name=name)(hidden) for name in ("one", "two")}
        model = keras.Model(inputs, outputs)
        model.compile(sgd(learning_rate=0.02), {"one": keras.losses.Dice(), "two": Contrast()})
    x, y = regression(PARTIAL)
    return trained(ctx, model, x, {"one": abs(y), "two": abs(y)})


@feature()
def metrics_of_the_whole_batch(ctx: Context) -> Outcome:
    """A metric function with one number for a batch, and a metric of one's own with a maximum and a mean of batches."""

    def overlap(y: Any, p: Any) -> Any:
        return 2 * keras.ops.sum(y * p) / (keras.ops.sum(y) + keras.ops.sum(p) + 0.001)

    class Own(keras.metrics.Metric):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.largest = self.add_variable((), "zeros", name="largest")
            self.total = self.add_variable((), "zeros", name="total")
            self.batches = self.add_variable((), "zeros", name="batches")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y_true - y_pred))))
            self.total.assign_add(overlap(y_true, y_pred))
            self.batches.assign_add(1.0)

        def result(self) -> Any:
            return self.largest + self.total / keras.ops.maximum(self.batches, 1.0)

    with ctx.scope():
        own = Own(name="own")
    return _fit(ctx, metrics=[overlap, own])
