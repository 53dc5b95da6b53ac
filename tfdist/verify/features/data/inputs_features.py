"""Inputs of `fit`: structures, texts, generators, datasets; each example comes once."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import BATCH, PARTIAL, compiled, dense, in_batches, regression, sgd, trained

WORDS = np.array(["red", "green", "blue", "unknown", "yellow"])


def _two_inputs() -> tuple[Any, Any, Any]:
    one, other = (keras.Input((3,), name=name) for name in ("one", "other"))
    hidden = keras.layers.Concatenate()([keras.layers.Dense(4, activation="tanh")(one), keras.layers.Dense(4)(other)])
    return one, other, keras.layers.Dense(1)(hidden)


def _halves(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = regression(rows)
    return x[:, :3], x[:, 3:], y


def _dataset(rows: int, batch_size: int, **options: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(regression(rows)).batch(batch_size, **options)


def _without_iterations(outcome: Outcome) -> Outcome:
    """Drop the optimizer's iterations: for data of unknown size, Keras on one device counts the failing last step."""
    return {name: value for name, value in outcome.items() if not name.endswith(" iteration")}


def _unknown_size(ctx: Context, data: Any, *, epochs: int = 1) -> Outcome:
    """Train on data that does not tell how many batches it has, and count the steps."""
    steps: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    outcome = trained(ctx, compiled(ctx), data, batch_size=None, epochs=epochs, callbacks=[count])
    return {**_without_iterations(outcome), "steps": len(steps)}


@feature()
def dict_inputs(ctx: Context) -> Outcome:
    """A dict of inputs, with a partial batch."""
    with ctx.scope():
        one, other, output = _two_inputs()
        model = keras.Model({"one": one, "other": other}, output)
        model.compile(sgd(), "mse")
    a, b, y = _halves(PARTIAL)
    outcome = trained(ctx, model, {"one": a, "other": b}, y)
    return {**outcome, "predict": model.predict({"one": a, "other": b}, batch_size=BATCH, verbose=0)}


@feature()
def tuple_inputs(ctx: Context) -> Outcome:
    """A tuple of inputs, with a partial batch."""
    with ctx.scope():
        one, other, output = _two_inputs()
        model = keras.Model((one, other), output)
        model.compile(sgd(), "mse")
    a, b, y = _halves(PARTIAL)
    return trained(ctx, model, (a, b), y)


@feature()
def nested_inputs(ctx: Context) -> Outcome:
    """Inputs in a dict that holds a list."""
    with ctx.scope():
        one, other, output = _two_inputs()
        third = keras.Input((3,), name="third")
        model = keras.Model({"pair": [one, other], "more": third}, keras.layers.Add()([output, third]))
        model.compile(sgd(), "mse")
    a, b, y = _halves(PARTIAL)
    return trained(ctx, model, {"pair": [a, b], "more": a * b}, y)


@feature()
def optional_inputs(ctx: Context) -> Outcome:
    """An optional input that is None: in arrays, in a dataset and from a generator; alone in front of what is there."""

    class Sum(keras.layers.Layer):
        def call(self, one: Any, other: Any = None) -> Any:
            return one if other is None else one + other

    with ctx.scope():
        absent, present = keras.Input((3,), name="absent", optional=True), keras.Input((3,), name="present")
        hidden = keras.layers.Dense(4, activation="tanh")(Sum()(present, absent))
        model = keras.Model({"absent": absent, "present": present}, keras.layers.Dense(1)(hidden))
        model.compile(sgd(), "mse")
    x, _, y = _halves(PARTIAL)
    inputs = {"absent": None, "present": x}
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    batches = (({"absent": None, "present": part}, targets) for part, targets in in_batches(x, y))
    outcome = {**trained(ctx, model, inputs, y), "predict": model.predict(inputs, batch_size=BATCH, verbose=0)}
    trained(ctx, model, rows.map(lambda x, y: ({"absent": None, "present": x}, y)), batch_size=None)
    outcome |= _without_iterations(trained(ctx, model, batches, batch_size=None, epochs=1))
    outcome["evaluate"] = model.evaluate(inputs, y, batch_size=BATCH, verbose=0)
    return {**outcome, "a batch": model.train_on_batch(inputs, y), "predict_on_batch": model.predict_on_batch(inputs)}


@feature()
def multi_output(ctx: Context) -> Outcome:
    """Two outputs with a loss, a weight and metrics each."""
    with ctx.scope():
        one, other, output = _two_inputs()
        label = keras.layers.Dense(3, activation="softmax", name="label")(output)
        model = keras.Model([one, other], {"value": output, "label": label})
        model.compile(
            sgd(),
            {"value": "mse", "label": "sparse_categorical_crossentropy"},
            loss_weights={"value": 0.3, "label": 2.0},
            metrics={"value": ["mae"], "label": ["accuracy"]},
        )
    a, b, y = _halves(PARTIAL)
    targets = {"value": y, "label": np.arange(PARTIAL) % 3}
    outcome = trained(ctx, model, [a, b], targets)
    predicted = model.predict([a, b], batch_size=BATCH, verbose=0)
    return {**outcome, **{f"predict/{name}": rows for name, rows in predicted.items()}}


@feature()
def string_lookup(ctx: Context) -> Outcome:
    """Texts as input, looked up and embedded in the model."""
    with ctx.scope():
        texts = keras.Input((1,), dtype="string")
        numbers = keras.layers.StringLookup(vocabulary=["red", "green", "blue"])(texts)
        hidden = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(numbers))
        model = keras.Model(texts, keras.layers.Dense(1)(hidden))
        model.compile(sgd(), "mse")
    texts = WORDS[np.arange(PARTIAL) % len(WORDS)][:, None]
    data = tf.data.Dataset.from_tensor_slices((texts, regression(PARTIAL)[1])).batch(BATCH)
    outcome = trained(ctx, model, data, batch_size=None)
    return {**outcome, "predict": model.predict(data, verbose=0)}


@feature()
def text_vectorization(ctx: Context) -> Outcome:
    """Sentences as input, split into words in the model."""
    with ctx.scope():
        texts = keras.Input((), dtype="string")
        layer = keras.layers.TextVectorization(output_sequence_length=4, vocabulary=["red", "green", "blue"])
        hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(6, 4)(layer(texts)))
        model = keras.Model(texts, keras.layers.Dense(1)(hidden))
        model.compile(sgd(), "mse")
    random = np.random.default_rng(3)
    sentences = np.array([" ".join(random.choice(WORDS, size=1 + row % 5)) for row in range(PARTIAL)])
    data = tf.data.Dataset.from_tensor_slices((sentences, regression(PARTIAL)[1])).batch(BATCH)
    return trained(ctx, model, data, batch_size=None)


@feature()
def string_passed_through(ctx: Context) -> Outcome:
    """A text beside the inputs, which the model does not use."""

    class Picky(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense()

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs["x"])

    model = compiled(ctx, Picky)
    x, y = regression(PARTIAL)
    names = WORDS[np.arange(PARTIAL) % len(WORDS)]
    data = tf.data.Dataset.from_tensor_slices(({"x": x, "name": names}, y)).batch(BATCH)
    return trained(ctx, model, data, batch_size=None)


@feature()
def generator(ctx: Context) -> Outcome:
    """A Python generator that can be read once: no batch is lost."""
    return _unknown_size(ctx, in_batches(*regression(PARTIAL)))


@feature()
def generator_of_varying_batches(ctx: Context) -> Outcome:
    """A generator whose batches have 5, 8, 1, 3 and 7 examples."""
    x, y = regression(24)
    ends = np.cumsum([5, 8, 1, 3, 7])

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for begin, end in zip([0, *ends], ends, strict=False):
            yield x[begin:end], y[begin:end]

    return _unknown_size(ctx, batches())


@feature()
def py_dataset(ctx: Context) -> Outcome:
    """A keras.utils.PyDataset with a partial batch."""
    x, y = regression(PARTIAL)

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return x[BATCH * index :][:BATCH], y[BATCH * index :][:BATCH]

    return trained(ctx, compiled(ctx), Batches(), batch_size=None)


@feature()
def tf_data(ctx: Context) -> Outcome:
    """A tf.data.Dataset with a partial batch."""
    return trained(ctx, compiled(ctx), _dataset(PARTIAL, BATCH), batch_size=None)


@feature()
def tf_data_drop_remainder(ctx: Context) -> Outcome:
    """A tf.data.Dataset whose batches have a static size that no number of replicas divides."""
    return trained(ctx, compiled(ctx), _dataset(PARTIAL, 7, drop_remainder=True), batch_size=None)


@feature()
def tf_data_of_unknown_size(ctx: Context) -> Outcome:
    """A filtered tf.data.Dataset, whose number of batches is unknown."""
    data = tf.data.Dataset.from_tensor_slices(regression(50)).filter(lambda x, y: x[0] > -1.0).batch(BATCH)
    return _unknown_size(ctx, data, epochs=2)


@feature()
def tf_data_infinite(ctx: Context) -> Outcome:
    """An endless tf.data.Dataset with steps_per_epoch, which does not fit its length."""
    return trained(ctx, compiled(ctx), _dataset(20, BATCH).repeat(), batch_size=None, steps_per_epoch=4)


@feature()
def tf_data_shuffled(ctx: Context) -> Outcome:
    """A seeded tf.data shuffle, another order every epoch."""
    data = tf.data.Dataset.from_tensor_slices(regression(PARTIAL)).shuffle(PARTIAL, seed=4).batch(BATCH)
    return trained(ctx, compiled(ctx), data, batch_size=None)


@feature()
def shuffle_once_each(ctx: Context) -> Outcome:
    """NumPy data with shuffle=True: every example exactly once in every epoch."""

    class Moment(keras.metrics.Metric):
        """The sum of a power of the targets, which are the examples' numbers."""

        def __init__(self, power: int) -> None:
            super().__init__(name=f"moment{power}")
            self.power = power
            self.total = self.add_weight(name="total", initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(keras.ops.sum(keras.ops.power(y_true, self.power)))

        def result(self) -> Any:
            return self.total

    with ctx.scope():
        model = dense()
        model.compile(sgd(learning_rate=0.0), "mse", metrics=[Moment(power) for power in range(4)])
    numbers = np.arange(1, PARTIAL + 1, dtype="float32")[:, None]
    return trained(ctx, model, regression(PARTIAL)[0], numbers, epochs=3, shuffle=True)


@feature()
def shuffle_same_order(ctx: Context) -> Outcome:
    """NumPy data with shuffle=True and a seed: the order of one device, so equal weights."""
    return trained(ctx, compiled(ctx), *regression(PARTIAL), epochs=3, shuffle=True)


@feature(may_refuse=True)
def unlike_rows(ctx: Context) -> Outcome:
    """Two inputs with unlike numbers of rows in a batch: replicas that share its rows refuse it."""

    class Pooled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.edges = keras.layers.Dense(1), keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.nodes(inputs["nodes"]) + keras.ops.mean(self.edges(inputs["edges"]), axis=0)

    model = compiled(ctx, Pooled)
    x, y = regression(BATCH + 4)
    data = tf.data.Dataset.from_tensors(({"nodes": x[:BATCH], "edges": x}, y[:BATCH]))
    return trained(ctx, model, data, batch_size=None)
