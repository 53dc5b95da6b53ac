"""Rows that combine every two choices of optimizer, wrapper, model, step, loop and data: `tfdist verify --pairs`.

They find errors that occur only where two features meet. `FACTORS` are the choices, `covering` makes the rows, and each
trains a small model. A new choice is a function and its entry in a table; `EXCLUDED` has pairs that do not go together.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import tfdist.callbacks
import tfdist.optimizers
import tfdist.training
from tfdist.verify import covering
from tfdist.verify.covering import Excluded
from tfdist.verify.feature import Context, Feature, Outcome, keras, registered, tf
from tfdist.verify.feature_tasks import BATCH, PARTIAL, history, in_batches, logs, prefixed, regression, row, state

_LENGTH, _WORDS, _WIDTH = 6, 9, 4

Row = Mapping[str, str]


# Models: inputs (batch, 6) of numbers or words, one output.


def _hidden(**options: Any) -> Any:
    return keras.layers.Dense(8, activation="tanh", **options)


def _distinct() -> list[Any]:

    class Distinct(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(_WORDS, _WIDTH), initializer="glorot_uniform")

        def call(self, words: Any) -> Any:
            distinct, places = keras.ops.unique(words, return_inverse=True)
            return keras.ops.take(keras.ops.take(self.table, distinct, axis=0), places, axis=0)

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape, _WIDTH)

    return [Distinct(), keras.layers.GlobalAveragePooling1D()]


def _sparse() -> list[Any]:
    """Hand sparse tensors, in which most numbers are left out, to a layer of Keras."""

    class Sparse(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.sparse.from_dense(tf.nn.relu(inputs - 0.3))

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor(inputs.shape, inputs.dtype, sparse=True)

    return [Sparse(), _hidden()]


def _normalized() -> list[Any]:
    # The gradient of a bias would be rounding errors alone, and Adam makes whole steps of them.
    normalization = keras.layers.BatchNormalization(momentum=0.5, synchronized=True)
    return [keras.layers.Dense(8, use_bias=False), normalization]


def _convolution() -> list[Any]:
    layers = keras.layers
    convolved = [layers.Reshape((_LENGTH, 1)), layers.Conv1D(4, 3, activation="tanh")]
    return [*convolved, layers.Flatten(), layers.UnitNormalization()]


def _keeping() -> list[Any]:

    class Keeps(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.count = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="count")
            self.total = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="total")

        def call(self, inputs: Any, training: bool = False) -> Any:
            self.add_loss(0.001 * keras.ops.sum(keras.ops.square(inputs)))
            if training:
                self.count.assign_add(keras.ops.cast(keras.ops.shape(inputs)[0], "int64"))
                self.total.assign(0.5 * self.total + keras.ops.sum(inputs, axis=0))
            return inputs

    return [_hidden(), Keeps()]


def _lookups(*, shared: bool = False) -> Any:
    """Return a layer that looks up words and their positions."""

    class Lookups(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.table = keras.layers.Embedding(_WORDS, _WIDTH)
            self.places = self.table if shared else keras.layers.Embedding(_LENGTH, _WIDTH)

        def build(self, shape: Any) -> None:
            self.table.build(shape)
            self.places.build(shape)

        def call(self, words: Any) -> Any:
            return self.table(words) + self.places(keras.ops.arange(keras.ops.shape(words)[-1]))

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape, _WIDTH)

    return Lookups()


_MODELS: dict[str, Callable[[], list[Any]]] = {
    "dense": lambda: [_hidden()],
    "words": lambda: [_lookups(), keras.layers.GlobalAveragePooling1D()],
    "shared_table": lambda: [_lookups(shared=True), keras.layers.Flatten()],
    "distinct": _distinct,
    "sparse": _sparse,
    "masked": lambda: [keras.layers.Embedding(_WORDS, _WIDTH, mask_zero=True), keras.layers.LSTM(5)],
    "normalized": _normalized,
    "convolution": _convolution,
    "regularized": lambda: [_hidden(kernel_regularizer="l2", activity_regularizer="l2", kernel_constraint="max_norm")],
    "frozen": lambda: [_hidden(trainable=False), _hidden()],
    "keeping": _keeping,
}
_OF_WORDS = ("words", "shared_table", "distinct", "masked")

# Optimizers, given options that all of Keras' take.


def _several(**options: Any) -> Any:
    optimizers = keras.optimizers
    adam = optimizers.Adam(0.02, **options)
    # one optimizer for tables and biases, and one for the rest
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(_sgd(**options), {".*(embeddings|bias|beta)": adam}))


def _sgd(**options: Any) -> Any:
    return keras.optimizers.SGD(**{"learning_rate": 0.1, **options})


_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": _sgd,
    "nesterov": lambda **options: _sgd(**{"momentum": 0.9, "nesterov": True, **options}),
    "adam": lambda **options: keras.optimizers.Adam(**{"learning_rate": 0.02, **options}),
    "rmsprop": lambda **options: keras.optimizers.RMSprop(**{"learning_rate": 0.01, **options}),
    "adafactor": lambda **options: keras.optimizers.Adafactor(**{"learning_rate": 0.02, **options}),
    "lamb": lambda **options: keras.optimizers.Lamb(**{"learning_rate": 0.02, **options}),
    "several": _several,
}


# What is between the gradients and the optimizer, given what makes the optimizer.
_AROUND: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "nothing": lambda make: make(),
    "clipnorm": lambda make: make(clipnorm=0.1),
    "global_clipnorm": lambda make: make(global_clipnorm=0.1),
    "accumulation": lambda make: make(gradient_accumulation_steps=2),
    "average": lambda make: make(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2, weight_decay=0.01),
    "schedule": lambda make: make(learning_rate=keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.7)),
    "loss_scale": lambda make: keras.optimizers.LossScaleOptimizer(make(), initial_scale=2.0**10),
    "distributed": lambda make: tfdist.optimizers.DistributedOptimizer(make(), accumulate_steps=2, clipvalue=0.05),
}


def _contrast() -> Any:

    class Contrast(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            others = 0.5 * keras.ops.mean(y_pred, axis=0)  # not all of it: a bias would have no gradient
            return keras.ops.mean(keras.ops.square(y_pred - others - y_true), axis=-1)

    return Contrast()


# Losses; targets are between 0 and 1.
_LOSSES: dict[str, Callable[[], Any]] = {
    "mse": lambda: "mse",
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "by_weight": lambda: keras.losses.Huber(reduction="mean_with_sample_weight"),
    "logits": lambda: keras.losses.BinaryCrossentropy(from_logits=True),
    "function": lambda: lambda y, predicted: keras.ops.mean(keras.ops.abs(y - predicted) ** 1.5, axis=-1),
    "contrast": _contrast,
}


def _largest_error(y: Any, predicted: Any) -> Any:
    return keras.ops.max(keras.ops.abs(y - predicted))


_METRICS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "metrics": lambda: {"metrics": ["mae", keras.metrics.RootMeanSquaredError()]},
    "of_the_batch": lambda: {"metrics": [_largest_error]},
    "weighted_metrics": lambda: {"weighted_metrics": ["mae"], "metrics": [keras.metrics.AUC(from_logits=True)]},
}


# Inputs: batches of (x, y) or (x, y, weights), given arrays.


def _dataset(*arrays: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays)


def _weights(rows: int) -> np.ndarray:
    return (0.25 + np.arange(rows) % 4).astype("float32")


def _py_dataset(*arrays: Any) -> Any:
    batches = list(in_batches(*arrays))

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            return batches[index]

    return Batches()


def _uneven(*arrays: Any) -> Any:
    """Yield batches of 5, 12, 1, 11 and 12 examples for ever."""
    ends = np.cumsum([5, 12, 1, 11, 12]).tolist()
    while True:
        for begin, end in zip([0, *ends], ends, strict=False):
            yield tuple(array[begin:end] for array in arrays)


_INPUTS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "arrays": lambda x, y: (x, y),
    "weights": lambda x, y: (x, y, _weights(len(x))),
    "dataset": lambda x, y: _dataset(x, y).batch(BATCH),
    "fixed_batches": lambda x, y: _dataset(x, y, _weights(len(x))).batch(BATCH, drop_remainder=True),
    "py_dataset": _py_dataset,
    "uneven_batches": _uneven,
}


# Loops: a compiled model, and data; each returns what it trained to.

_FIT = {"epochs": 2, "shuffle": False, "verbose": 0}


def _fit(model: Any, data: Any, **options: Any) -> Outcome:
    callbacks = [tfdist.callbacks.LossScaleLogger()]  # fit has it by itself in a tfdist scope
    given = dict(zip(("x", "y", "sample_weight"), data, strict=False)) if isinstance(data, tuple) else {"x": data}
    size = {"batch_size": BATCH} if isinstance(data, tuple) else {}
    if isinstance(data, Iterator):
        size = {"steps_per_epoch": 5}
    return history(model.fit(**given, **size, **{**_FIT, "callbacks": callbacks, **options}))


def _two_fits(model: Any, data: Any) -> Outcome:
    first = _fit(model, data, epochs=1)
    return {**first, **prefixed("again", _fit(model, data, epochs=1))}


def _validated(model: Any, data: Any) -> Outcome:
    rows, (x, y) = 11, regression(11)
    x = _as_words(x) if model.inputs[0].dtype == "int32" else x
    return _fit(model, data, validation_data=(x, _targets(y), _weights(rows)), validation_batch_size=BATCH)


def _batch_by_batch(model: Any, data: Any) -> Outcome:
    outcome: dict[str, Any] = {}
    batches = in_batches(*data) if isinstance(data, tuple) else data
    for number, batch in enumerate(itertools.islice(batches, 4)):
        outcome |= logs(model.train_on_batch(*batch, return_dict=True), f"batch {number}")
    return outcome


_LOOPS: dict[str, Callable[[Any, Any], Outcome]] = {
    "fit": _fit,
    "steps_per_execution": _fit,
    "compiled_steps": _fit,
    "run_eagerly": _fit,
    "validation": _validated,
    "two_fits": _two_fits,
    "train_on_batch": _batch_by_batch,
}


# Of four batches the last is partial, and in one graph with others.
_STEPS = {"steps_per_execution": 4, "compiled_steps": 2}


# Steps: given a model of Keras, a model that trains by it.


def _own(model: Any, change: Callable[[Any, list[Any]], tuple[list[Any], dict[str, Any]]]) -> Any:
    """Return the model with a train_step of a user's own, whose first call builds the optimizer."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weights)
                scaled = self.optimizer.scale_loss(loss)
            self.metrics[0].update_state(loss, sample_weight=tf.shape(x)[0])
            gradients, logs = change(self, tape.gradient(scaled, self.trainable_variables))
            self.optimizer.apply(gradients, self.trainable_variables)
            if not self.jit_compile:  # a program of XLA may log metrics under their names alone
                logs |= {"own loss": loss}
            return {**self.compute_metrics(x, y, predicted, weights), **logs}

    return Own(model.inputs, model.outputs)


def _clipped(model: Any, gradients: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Clip the gradients of the global batch by their norm, which a loss scale makes larger, and log it unscaled."""
    if tf.executing_eagerly():  # where rows of embeddings cannot be told apart
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    reduced = tfdist.training.reduced_gradients(gradients)
    one = model.optimizer.scale_loss(tf.constant(1.0))
    clipped, norm = tf.clip_by_global_norm(reduced, 0.2 * one)
    return clipped, {"norm": norm / one}


_TRAIN_STEPS: dict[str, Callable[[Any], Any]] = {
    "keras_step": lambda model: model,
    "own_step": lambda model: _own(model, lambda _, gradients: (gradients, {})),
    "norms_in_a_step": lambda model: _own(model, _clipped),
}


FACTORS: dict[str, tuple[str, ...]] = {
    "optimizer": tuple(_OPTIMIZERS),
    "around": tuple(_AROUND),
    "model": tuple(_MODELS),
    "step": tuple(_TRAIN_STEPS),
    "loop": tuple(_LOOPS),
    "input": tuple(_INPUTS),
    "loss": tuple(_LOSSES),
    "metrics": tuple(_METRICS),
}

EXCLUDED: tuple[Excluded, ...] = (
    *(
        Excluded(
            ("loop", "run_eagerly"),
            ("model", model),
            "without a graph nothing tells where indices come from: docs/design/gradients.md",
        )
        for model in ("words", "shared_table", "distinct", "sparse")
    ),
    Excluded(
        ("loop", "two_fits"),
        ("input", "uneven_batches"),
        "Keras reads ahead of a generator, on one device too: where the second fit begins is a matter of time",
    ),
    Excluded(
        ("model", "normalized"),
        ("input", "uneven_batches"),
        "the first targets are equal, so a shift has a gradient of roundings alone, of which Adam makes whole steps in "
        "float32; in float64 its steps agree to 1e-12, and those of SGD to 2e-15",
    ),
    *(
        Excluded(("loop", "compiled_steps"), choice, "it adds up over replicas in a step, which is refused under XLA")
        for choice in (
            *(("model", "normalized"), ("loss", "function"), ("loss", "by_weight")),
            *(("loss", "contrast"), ("metrics", "of_the_batch"), ("step", "norms_in_a_step")),
        )
    ),
    Excluded(("loop", "compiled_steps"), ("model", "sparse"), "XLA has no operations for sparse tensors"),
    Excluded(
        ("optimizer", "several"),
        ("around", "schedule"),
        "each optimizer of a MultiOptimizer would count the same steps: the rows with one optimizer show it",
    ),
)


def _as_words(x: np.ndarray) -> np.ndarray:
    return (np.abs(x) * 5).astype("int32") % _WORDS


def _targets(y: np.ndarray) -> np.ndarray:
    return (y > 0.1).astype("float32")


def _trained(ctx: Context, row: Row) -> Outcome:
    words = row["model"] in _OF_WORDS
    with ctx.scope():
        entry = keras.Input((_LENGTH,), dtype="int32" if words else "float32")
        model = keras.Sequential([entry, *_MODELS[row["model"]](), keras.layers.Dense(1)])
        model = _TRAIN_STEPS[row["step"]](model)
        model.compile(
            _AROUND[row["around"]](_OPTIMIZERS[row["optimizer"]]),
            _LOSSES[row["loss"]](),
            loss_weights=0.1 if row["loss"] == "sum" else None,
            **_METRICS[row["metrics"]](),
            run_eagerly=row["loop"] == "run_eagerly",
            jit_compile=row["loop"] == "compiled_steps",
            steps_per_execution=_STEPS.get(row["loop"], 1),
        )
    x, y = regression(PARTIAL)
    data = _INPUTS[row["input"]](_as_words(x) if words else x, _targets(y))
    return {**_LOOPS[row["loop"]](model, data), **state(ctx, model)}


def _feature(choices: Row) -> Feature:
    name = "-".join(choices.values())
    row(name, ", ".join(f"{factor} {value}" for factor, value in choices.items()), lambda ctx: _trained(ctx, choices))
    return registered(name)


ROWS: tuple[Row, ...] = tuple(covering.rows(FACTORS, EXCLUDED))

_FEATURES = {entry.name: entry for entry in map(_feature, ROWS)}


def features() -> dict[str, Feature]:
    """Return a row for each combination, named by its choices joined by hyphens. Loads no TensorFlow."""
    return dict(_FEATURES)
