"""Corners that one table tests: each function trains in a scope, and must return the numbers of one device."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mirrored_cases import STRATEGY, X, Y, model

CASES: dict[str, Callable[[], list[Any]]] = {}


def case(function: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    CASES[function.__name__] = function
    return function


def names() -> list[str]:
    return list(CASES)


def both(name: str) -> dict[str, list[float]]:
    """Return the numbers of one device and of two replicas."""
    results = {}
    for side, scope in (("one", contextlib.nullcontext()), ("two", STRATEGY.scope())):
        keras.utils.set_random_seed(0)
        with scope:
            values = CASES[name]()
        results[side] = np.concatenate([np.ravel(np.asarray(value, np.float64)) for value in values]).tolist()
    return results


def fitted(network: keras.Model, x: Any = X, y: Any = Y, **options: Any) -> list[Any]:
    history = network.fit(x, y, **{"batch_size": 8, "shuffle": False, "verbose": 0, **options}).history
    return [*network.get_weights(), *history.values()]


class Steps(keras.Model):
    """A model around another, for a `train_step` of its own."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.net = model()
        for name, value in held.items():
            setattr(self, name, value)

    def call(self, inputs: Any) -> Any:
        return self.net(inputs)

    def take(self, optimizer: Any, loss_of: Callable[[Any], Any], *, scale: bool = False) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(self.net)
            target = optimizer.scale_loss(loss) if scale else loss
        optimizer.apply(tape.gradient(target, self.net.trainable_variables), self.net.trainable_variables)
        return loss


def _optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, clipnorm=0.1)


@case
def optimizers_in_a_dictionary_and_a_list() -> list[Any]:
    class Held(Steps):
        def train_step(self, data: Any) -> Any:
            x, y = data
            self.take(self.by_name["a"], lambda net: tf.reduce_mean((net(x) - y) ** 2))
            return {"b": self.take(self.listed[0], lambda net: tf.reduce_mean(tf.abs(net(x) - y)))}

    network = Held(by_name={"a": _optimizer()}, listed=[keras.optimizers.SGD(0.1)])
    for optimizer in (network.by_name["a"], network.listed[0]):
        optimizer.build(network.net.trainable_variables)
    network.compile()
    return fitted(network)


@case
def the_optimizer_of_a_model_inside() -> list[Any]:
    class Outer(Steps):
        @tf.function  # a sum in it is told from a mean
        def train_step(self, data: Any) -> Any:
            x, y = data
            return {"l": self.take(self.net.optimizer, lambda net: tf.reduce_sum((net(x) - y) ** 2) / 32)}

    network = Outer()
    network.net.optimizer.build(network.net.trainable_variables)
    network.compile()
    return fitted(network)


@case
def one_scaled_loss_and_one_that_is_not() -> list[Any]:
    class Twice(Steps):
        def train_step(self, data: Any) -> Any:
            x, y = data
            self.take(self.optimizer, lambda net: tf.reduce_mean((net(x) - y) ** 2), scale=True)
            return {"l": self.take(self.optimizer, lambda net: tf.reduce_mean(tf.abs(net(x) - y)))}

    network = Twice()
    network.compile(keras.optimizers.SGD(0.1))
    return fitted(network)


@case
def a_loss_that_drops_examples() -> list[Any]:
    def loss(y: Any, p: Any) -> Any:
        return tf.boolean_mask((y - p) ** 2, y > 0.3)

    return fitted(model(loss=loss))


def _rows_of_a_partial_batch(**options: Any) -> list[Any]:
    words = np.random.RandomState(2).randint(0, 9, (22, 5)).astype(np.int32)
    layers = [keras.layers.Embedding(9, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    network = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
    network.compile("adam", "mse", steps_per_execution=2, **options)
    return fitted(network, words, words.sum(1, keepdims=True).astype(np.float32), batch_size=4, epochs=2)


@case
def rows_of_a_partial_batch_in_a_graph_of_two_steps() -> list[Any]:
    return _rows_of_a_partial_batch()


@case
def rows_of_a_partial_batch_in_a_program_of_two_steps() -> list[Any]:
    return _rows_of_a_partial_batch(jit_compile=True)


@case
def a_scalar_beside_the_examples() -> list[Any]:
    class Scaled(Steps):
        def train_step(self, data: Any) -> Any:
            ((parts, y),) = (data,)
            return {"l": self.take(self.optimizer, lambda net: tf.reduce_mean((net(parts["x"]) * parts["a"] - y) ** 2))}

    batches = [({"a": np.float32(0.5), "x": X[i : i + 8]}, Y[i : i + 8]) for i in range(0, 32, 8)]
    spec = ({"a": tf.TensorSpec([]), "x": tf.TensorSpec([None, 4])}, tf.TensorSpec([None, 1]))
    network = Scaled()
    network.build((None, 4))
    network.compile(keras.optimizers.SGD(0.1))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return fitted(network, data, None, batch_size=None)[:-1]


@case
def metrics_that_are_given_one_number() -> list[Any]:
    def largest_error(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.abs(y - p)) + 1.0

    return fitted(model(metrics=[largest_error]))


@case
def logs_named_like_a_metric_that_was_not_updated() -> list[Any]:
    class Raw(Steps):
        def train_step(self, data: Any) -> Any:
            x, y = data
            return {"loss": self.take(self.optimizer, lambda net: tf.reduce_mean((net(x) - y) ** 2))}

    network = Raw()
    network.compile(keras.optimizers.SGD(0.1))
    seen: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"])))
    return [*fitted(network, callbacks=[note]), seen]


@case
def a_frozen_layer_that_keeps_a_state() -> list[Any]:
    class Follows(keras.Layer):
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, axis=0))
            return inputs - self.mean

    layer = Follows()
    layer.trainable = False
    network = keras.Sequential([keras.Input((4,)), layer, model()])
    network.compile(keras.optimizers.SGD(0.1), "mse")
    # the layer's output follows the batch, so even batches of equal halves: the same on every replica
    x = np.repeat(X[:16], 2, axis=0).reshape(4, 4, 2, 4).transpose(0, 2, 1, 3).reshape(32, 4)
    y = np.repeat(Y[:16], 2, axis=0).reshape(4, 4, 2, 1).transpose(0, 2, 1, 3).reshape(32, 1)
    return fitted(network, x, y)


@case
def statistics_far_from_zero() -> list[Any]:
    # One device needs no synchronizing; asked to, it takes a difference of squares that loses digits here.
    norm = keras.layers.BatchNormalization(synchronized=tf.distribute.has_strategy(), momentum=0.5)
    layers = [keras.Input((4,)), norm, model()]
    network = keras.Sequential(layers)
    network.compile(keras.optimizers.SGD(0.1), "mse")
    return [*fitted(network, X + 30.0), network.predict(X + 30.0, verbose=0)]


@case
def predictions_with_several_rows_for_an_example() -> list[Any]:
    inputs = keras.Input((4,))
    network = keras.Model(inputs, keras.layers.Lambda(lambda v: tf.reshape(v, [-1, 1]), output_shape=(1,))(inputs))
    return [network.predict(X[:2], batch_size=1, verbose=0)]


@case
def predict_on_batch_before_all_else() -> list[Any]:
    network = model()
    return [network.predict_on_batch(X[:5]), network.predict(X, batch_size=8, verbose=0), *fitted(network)]


@case
def predictions_of_sparse_batches_before_all_else() -> list[Any]:
    """The model is built in the step, from the number of features of a part of a sparse batch."""
    network = keras.Sequential([keras.layers.Dense(3, kernel_initializer="ones")])
    return [network.predict(tf.data.Dataset.from_tensor_slices(X).batch(8).map(tf.sparse.from_dense), verbose=0)]


@case
def a_train_function_of_ones_own() -> list[Any]:
    calls = []

    class Counts(keras.Sequential):
        def make_train_function(self, force: bool = False) -> Any:
            calls.append(1)
            return super().make_train_function(force)

    network = Counts([keras.Input((4,)), *model().layers])
    network.compile(keras.optimizers.SGD(0.1), "mse")
    return [*fitted(network), len(calls)]


def noise_without_a_seed() -> float:
    """Train with a layer that draws from Keras' global generator; return the loss."""

    class Noise(keras.Layer):
        def call(self, inputs: Any, training: bool = False) -> Any:
            return inputs + keras.random.normal(tf.shape(inputs)) if training else inputs

    with STRATEGY.scope():
        network = keras.Sequential([keras.Input((4,)), Noise(), model()])
        network.compile(keras.optimizers.SGD(0.01), "mse")
    return float(network.fit(X, Y, verbose=0).history["loss"][0])


def nested_sums() -> list[float]:
    with STRATEGY.scope():
        pair = STRATEGY.run(lambda: (tf.constant(1.0), tf.constant(10.0)))
    return [float(value) for value in STRATEGY.reduce("SUM", pair, axis=None)]


def loop_inside_a_model() -> bool:
    class Own(keras.Sequential):
        def distributed(self) -> Any:
            return STRATEGY.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(X).batch(8))

    with STRATEGY.scope():
        network = Own([keras.Input((4,)), keras.layers.Dense(1)])
    return isinstance(network.distributed(), tf.distribute.DistributedDataset)


def traces_of_train_on_batch() -> int:
    traces = []

    class Counts(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            traces.append(1)
            return super().train_step(data)

    with STRATEGY.scope():
        network = Counts([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
    for rows in (7, 5, 3, 9, 11, 2):
        network.train_on_batch(X[:rows], Y[:rows])
    return len(traces)
