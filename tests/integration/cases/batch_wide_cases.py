"""Models that look at a whole batch: states, added losses, losses and metrics, under a strategy and on one device."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hearing import heard
from keras import ops

import tfdist
from tfdist.errors import UnsupportedError

STRATEGY = tfdist.strategies.from_environment()
_RANDOM = np.random.default_rng(7)
ROWS, BATCH = 33, 8  # the last batch has one example: other replicas have none
X = _RANDOM.normal(size=(ROWS, 4)).astype("float32")
Y = np.abs(_RANDOM.normal(size=(ROWS, 3))).astype("float32")


class Keeping(keras.layers.Layer):
    """A layer that keeps something of what it is given."""

    shape: tuple[int, ...] = ()
    dtype_of_state = "float32"
    options: Mapping[str, Any] = MappingProxyType({})

    def build(self, shape: Any) -> None:
        options = {"shape": self.shape, "dtype": self.dtype_of_state, "initializer": "zeros", **self.options}
        self.kept = self.add_weight(trainable=False, name="kept", **options)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.keep(inputs)
        return inputs

    def keep(self, inputs: Any) -> None:
        raise AssertionError


class Count(Keeping):
    def keep(self, inputs: Any) -> None:
        self.kept.assign_add(ops.cast(ops.shape(inputs)[0], self.kept.dtype))


class IntCount(Count):
    dtype_of_state = "int64"


class DeclaredCount(Count):
    options = MappingProxyType({"aggregation": "sum"})


class Steps(Keeping):
    dtype_of_state = "int32"

    def keep(self, inputs: Any) -> None:
        self.kept.assign_add(1)


class Sum(Keeping):
    shape = (4,)

    def keep(self, inputs: Any) -> None:
        self.kept.assign(self.kept + ops.sum(inputs, axis=0))


class DecayedSum(Sum):
    def keep(self, inputs: Any) -> None:
        self.kept.assign(0.9 * self.kept + 0.1 * ops.sum(inputs, axis=0))


class Average(Sum):
    def keep(self, inputs: Any) -> None:
        self.kept.assign(self.kept + 0.1 * (ops.mean(inputs, axis=0) - self.kept))


class Largest(Sum):
    def keep(self, inputs: Any) -> None:
        self.kept.assign(ops.maximum(self.kept, ops.max(inputs, axis=0)))


class Smallest(Sum):
    def keep(self, inputs: Any) -> None:
        smallest = ops.min(inputs, axis=0)
        self.kept.assign(ops.where(smallest < self.kept, smallest, self.kept))


class LastRow(Sum):
    def keep(self, inputs: Any) -> None:
        self.kept.assign(inputs[-1])


class Histogram(Keeping):
    shape, dtype_of_state = (5,), "int32"

    def keep(self, inputs: Any) -> None:
        bins = ops.cast(ops.clip(inputs[:, :1] + 2, 0, 4), "int32")
        self.kept.assign_add(ops.sum(ops.one_hot(bins[:, 0], 5, dtype="int32"), axis=0))


class Twice(Keeping):
    """Counts in two assignments of one step."""

    def keep(self, inputs: Any) -> None:
        self.kept.assign_add(ops.cast(ops.shape(inputs)[0], "float32"))
        self.kept.assign_add(ops.sum(inputs))


class Wave(Keeping):
    """Trains complex numbers, keeps an average of them, and exchanges them."""

    shape, dtype_of_state = (4,), "complex64"

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.phase = self.add_weight(shape=(4,), dtype="complex64", initializer="ones", name="phase")

    def call(self, inputs: Any, training: bool = False) -> Any:
        turned = tf.cast(inputs, tf.complex64) * self.phase * tf.constant(1 + 0.5j, tf.complex64)
        if (replica := tf.distribute.get_replica_context()) is not None:
            squares = tf.reduce_mean(replica.all_gather(turned * turned, axis=0), axis=0)
            turned -= replica.all_reduce("MEAN", 0.1 * squares)
        if training:
            self.kept.assign(0.9 * self.kept + 0.1 * tf.reduce_mean(turned, axis=0))
        return tf.math.real(turned) + tf.math.imag(turned)


class Codebook(keras.layers.Layer):
    """A codebook made of moving counts and sums, as in a VQ-VAE."""

    def build(self, shape: Any) -> None:
        first = lambda shape, dtype: ops.cast(X[:3], dtype)  # noqa: E731
        self.counts = self.add_weight(shape=(3,), initializer="ones", trainable=False, name="counts")
        self.sums = self.add_weight(shape=(3, 4), initializer=first, trainable=False, name="sums")
        self.book = self.add_weight(shape=(3, 4), initializer=first, trainable=False, name="book")

    def call(self, inputs: Any, training: bool = False) -> Any:
        distances = ops.sum(ops.square(inputs[:, None] - self.book[None]), axis=-1)
        nearest = ops.one_hot(ops.argmin(distances, axis=-1), 3, dtype="float32")
        if training:
            self.counts.assign(0.8 * self.counts + 0.2 * ops.sum(nearest, axis=0))
            self.sums.assign(0.8 * self.sums + 0.2 * ops.matmul(ops.transpose(nearest), inputs))
            self.book.assign(self.sums / (self.counts[:, None] + 0.01))
        return inputs + 0.1 * ops.matmul(nearest, self.book)


class Queue(Keeping):
    """Keeps the rows that came last, as MoCo does: no sum, no mean."""

    shape = (16, 4)

    def keep(self, inputs: Any) -> None:
        self.kept.assign(ops.concatenate([inputs, self.kept], axis=0)[:16])


class Wrapping(Keeping):
    """Counts examples, and begins anew at 20: a trial on one batch sees nothing of that."""

    dtype_of_state = "int32"

    def keep(self, inputs: Any) -> None:
        self.kept.assign((self.kept + ops.shape(inputs)[0]) % 20)


class Adds(keras.layers.Layer):
    """A layer that adds a loss."""

    def __init__(self, of: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.of = of

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.of(inputs))
        return inputs


class Deviation(keras.layers.Layer):
    """Adds the deviation of a batch to each of its rows, as discriminators do."""

    def call(self, inputs: Any) -> Any:
        return inputs + ops.mean(ops.std(inputs, axis=0))


class Peak(keras.layers.Layer):
    """Gives a metric of its own the largest number of a batch, which is no sum over examples."""

    def build(self, shape: Any) -> None:
        self.peak = keras.metrics.Mean(name="peak")

    def call(self, inputs: Any) -> Any:
        self.peak.update_state(ops.max(inputs))
        return inputs


class Attention(keras.layers.Layer):
    """A layer of the user's that computes each row by itself, with layers of Keras and draws inside."""

    def build(self, shape: Any) -> None:
        self.attends = keras.layers.MultiHeadAttention(1, 2, dropout=0.0)
        self.norm = keras.layers.LayerNormalization()

    def call(self, inputs: Any) -> Any:
        steps = ops.reshape(inputs, (-1, 2, 2))
        return ops.reshape(self.norm(self.attends(steps, steps) + steps), (-1, 4))


def _centred(**options: Any) -> keras.Model:
    """Return a functional model that takes the mean of its rows by an operation."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4)(inputs)
    outputs = keras.layers.Dense(3)(hidden - ops.mean(hidden, axis=0, keepdims=True))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.05), "mse", **options)
    return model


class Comparing(keras.losses.MeanSquaredError):
    """A loss with a value for each example that is compared with the batch, in place of the one of Keras."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_pred - ops.mean(y_pred, axis=0) - y_true), axis=-1)


class Clipping(keras.optimizers.SGD):
    """Clips gradients before it applies them."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        return super().apply_gradients(zip(clipped, variables, strict=True))


class Shaken(keras.optimizers.SGD):
    """Adds random numbers to the weights."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        variable.assign_add(0.01 * tf.random.normal(variable.shape))


class Logging(keras.Sequential):
    """Logs a whole number that is a sum over examples, and one that is not."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        above = ops.sum(ops.cast(y_pred > y, "int32"))
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "above": above, "width": ops.shape(y)[1]}


class F1(keras.metrics.Metric):
    """A metric of the user's that takes the mean of a number of each batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.total = self.add_variable((), "zeros", name="total")
        self.batches = self.add_variable((), "zeros", name="batches")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(_dice(y_true, y_pred))
        self.batches.assign_add(1.0)

    def result(self) -> Any:
        return self.total / ops.maximum(self.batches, 1.0)


class Seen(keras.metrics.Metric):
    """A metric of the user's that counts examples, as every metric should."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(ops.cast(ops.shape(y_true)[0], "float32"))

    def result(self) -> Any:
        return self.count


class LargestError(F1):
    """A metric of the user's that keeps a maximum."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(ops.maximum(self.total, ops.max(ops.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.total * 1.0


class FromOne(Seen):
    """A metric of the user's that begins at one, and that Keras resets to zero."""

    def __init__(self, **options: Any) -> None:
        keras.metrics.Metric.__init__(self, **options)
        self.count = self.add_variable((), "ones", name="count")


class Undeclared(Seen):
    """A metric of the user's with a variable that says nothing of replicas."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.count = keras.Variable(0.0, trainable=False, name="undeclared")


def _dice(y: Any, p: Any) -> Any:
    return 1 - 2 * ops.sum(y * p) / (ops.sum(y) + ops.sum(p) + 1e-3)


def _centred_error(y: Any, p: Any) -> Any:
    """Return a value for each example that is compared with the batch."""
    return ops.mean(ops.abs(p - ops.mean(p, axis=0)), axis=-1)


def _masked(y: Any, p: Any) -> Any:
    mask = ops.cast(y > 0.5, "float32")
    return ops.sum(ops.square(y - p) * mask) / (ops.sum(mask) + 0.1)


def _of_each(y: Any, p: Any) -> Any:
    """Return a value for each example, of which only a sum over replicas tells how many there are."""
    return ops.mean(ops.abs(y - p), axis=-1)


def _balance(inputs: Any) -> Any:
    routed = ops.softmax(inputs)
    return ops.sum(ops.mean(routed, axis=0) * ops.mean(ops.cast(routed > 0.3, "float32"), axis=0))


def _built(
    *layers: Any,
    loss: Any = "mse",
    metrics: Any = (),
    penalty: Any = None,
    kind: Any = keras.Sequential,
    optimizer: Any = keras.optimizers.SGD,
    **options: Any,
) -> keras.Model:
    keras.utils.set_random_seed(3)
    first, last = keras.layers.Dense(4, activity_regularizer=penalty), keras.layers.Dense(3, activation="softplus")
    model = kind([keras.Input((4,)), first, *layers, last])
    model.compile(optimizer(0.05), loss, metrics=list(metrics), **options)
    return model


_STATES = (
    *(Count, IntCount, DeclaredCount, Steps, Sum, DecayedSum, Average),
    *(Largest, Smallest, LastRow, Histogram, Twice),
)
#: what is the same as on one device
RIGHT: dict[str, Callable[..., keras.Model]] = {
    "states": lambda **options: _built(*(kind() for kind in _STATES), kind=Logging, **options),
    "a codebook": lambda **options: _built(Codebook(), **options),
    "losses of layers": lambda **options: _built(
        Adds(lambda h: 0.1 * ops.sum(h * h)), Adds(lambda h: 0.1 * ops.mean(h * h)), penalty=ops.mean, **options
    ),
    "losses of layers, eagerly": lambda **options: _built(
        penalty="l2", loss=_of_each, optimizer=Clipping, **{"run_eagerly": True, **options}
    ),
    "dice of Keras": lambda **options: _built(loss=keras.losses.Dice(), **options),
    "tversky of Keras": lambda **options: _built(loss=keras.losses.Tversky(alpha=0.3, beta=0.7), **options),
    "a loss with a mask": lambda **options: _built(loss=_masked, **options),
    "a loss that compares": lambda **options: _built(loss=Comparing(), optimizer=Clipping, **options),
    "a similarity over rows": lambda **options: _built(loss=keras.losses.CosineSimilarity(axis=-2), **options),
    "a layer of ones own": lambda **options: _built(Attention(), Wave(), **options),
    "metrics": lambda **options: _built(
        metrics=[
            *(_dice, _centred_error, F1(name="f1"), LargestError(name="largest"), Seen(name="seen")),
            *(Undeclared(name="undeclared"), FromOne(name="from_one"), keras.losses.dice),
            *(keras.metrics.CosineSimilarity(axis=axis, name=f"over_axis_{axis}") for axis in (0, -2)),
            keras.losses.MeanSquaredError(reduction="sum", name="summed"),
        ],
        **options,
    ),
}
#: what cannot be right, and is said by the name that the user gave
SAID: dict[str, Callable[..., keras.Model]] = {
    "queue/kept": lambda **options: _built(Queue(name="queue"), **options),
    "wrapping/kept": lambda **options: _built(Wrapping(name="wrapping"), **options),
    "balances": lambda **options: _built(Adds(_balance, name="balances"), **options),
    "deviation": lambda **options: _built(Deviation(name="deviation"), **options),
    "over_rows": lambda **options: _built(keras.layers.Softmax(axis=0, name="over_rows"), **options),
    "mean": _centred,
    "peak": lambda **options: _built(Peak(), **options),
    "kernel": lambda **options: _built(optimizer=Shaken, **options),
    "the layer 'own_rows' (": lambda **options: _built(
        keras.layers.BatchNormalization(name="own_rows"),
        keras.layers.BatchNormalization(name="all_rows", synchronized=True),
        keras.layers.BatchNormalization(name="frozen", trainable=False),
        **options,
    ),
}


def trained(build: Callable[..., keras.Model], strategy: Any = None, *, fits: int = 1, **options: Any) -> Any:
    """Train with a partial last batch; return logs, variables, and what was said."""
    with nullcontext() if strategy is None else strategy.scope():
        model = build(**options)
    with heard() as said:
        logs = [model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history for _ in range(fits)]
        logs.append(model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True))
    named = {f"{number} {variable.name}": variable for number, variable in enumerate(model.variables)}
    values = {name: np.asarray(variable.numpy()) for name, variable in named.items()}
    copies = {}
    if strategy is not None:
        local = strategy.experimental_local_results
        copies = {name: [np.asarray(one) for one in local(v.value)] for name, v in named.items()}
    return {"logs": logs, "values": values, "copies": copies, "said": said}


def apart(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Return the largest differences of logs and variables between two trainings."""
    found = {name: _difference(value, other["values"][name]) for name, value in one["values"].items()}
    for number, (logs, others) in enumerate(zip(one["logs"], other["logs"], strict=True)):
        found |= {f"logs {number} {name}": _difference(value, others[name]) for name, value in logs.items()}
    return found


def _difference(one: Any, other: Any) -> float:
    one, other = np.asarray(one, np.complex128), np.asarray(other, np.complex128)
    return float(np.abs(one - other).max(initial=0.0) / max(1.0, np.abs(other).max(initial=0.0)))


def differences(name: str, **options: Any) -> dict[str, Any]:
    """Return a right model's differences from one device, the warnings, and the copies that are not equal."""
    under, one = trained(RIGHT[name], STRATEGY, **options), trained(RIGHT[name], run_eagerly=True)
    wrong = {path: error for path, error in apart(under, one).items() if error > 1e-5}
    unequal = [path for path, own in under["copies"].items() if not all(np.array_equal(own[0], c) for c in own)]
    return {"wrong": wrong, "said": under["said"], "unequal": unequal}


def sentences(name: str) -> list[str]:
    """Return the warnings about a model that cannot be right, in two calls of fit."""
    said: list[str] = trained(SAID[name], STRATEGY, fits=2)["said"]
    return said


def said_of_an_evaluation() -> list[str]:
    """Return the warnings about a model that is only evaluated, with an activation that compares rows."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.layers.Dense(3, activation=lambda h: h - ops.mean(h, axis=0), name="centring")])
        model.compile(loss="mse")
    with heard() as said:
        model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    return said


class Accumulating(keras.Model):
    """A model that adds up gradients by hand, and applies them inside a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")

    def call(self, inputs: Any) -> Any:
        return self.net(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.net(x) - y))
        weights = self.net.trainable_variables
        gradients = tape.gradient(loss, weights)

        def apply() -> int:
            self.optimizer.apply(gradients, weights)
            return 0

        tf.cond(self.steps % 2 == 0, apply, lambda: 0)
        return {"loss": loss}


def said_of_a_condition() -> list[str]:
    """Return the warnings about a step that cannot be tried."""
    with STRATEGY.scope():
        model = Accumulating()
        model.compile(keras.optimizers.SGD(0.05))
    with heard() as said:
        model.fit(X, Y, batch_size=BATCH, verbose=0)
    return said


def stateful_layer() -> dict[str, str]:
    """Return the errors of a stateful recurrent layer, in training and in an evaluation."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input(batch_shape=(BATCH, 2, 2)), keras.layers.GRU(3, stateful=True)])
        model.compile("sgd", "mse")
    found = {}
    for name in ("fit", "evaluate"):
        try:
            getattr(model, name)(X[:BATCH].reshape(BATCH, 2, 2), Y[:BATCH], batch_size=BATCH, verbose=0)
        except UnsupportedError as error:
            found[name] = str(error)
    return found
