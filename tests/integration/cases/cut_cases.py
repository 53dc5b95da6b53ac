"""Models that are cut at each place where they can be, on devices of one process, beside one device."""

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import parallel
from tfdist.compat.keras.symbolic import nested_models
from tfdist.parallel.pipeline.division import graph_of
from tfdist.strategies import PipelineStrategy, use_logical_cpus

if "LOGICAL_CPUS" in os.environ:
    use_logical_cpus(int(os.environ["LOGICAL_CPUS"]))
# in two micro-batches, of two and of three examples
ROWS = 5
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(ROWS, 6)).astype("float32")
Y = RANDOM.normal(size=(ROWS, 2)).astype("float32")
IDS = np.array([[1, 2, 0, 0], [3, 4, 5, 6], [7, 8, 9, 0], [10, 0, 0, 0], [1, 3, 5, 0]], "int32")
SERIES = RANDOM.normal(size=(ROWS, 4, 2)).astype("float32")
layers = keras.layers


class Softmax(layers.Layer):
    """A softmax of TensorFlow's, of which Keras knows the logits by the operation alone."""

    def call(self, x: Any) -> Any:
        return tf.nn.softmax(x)


def _far_apart(seed: int) -> Any:
    return keras.initializers.RandomNormal(stddev=60, seed=seed)


def heads() -> keras.Model:
    """Three results that are probabilities, near 0 and 1, before the last one."""
    inputs = keras.Input((6,))
    x = layers.Dense(4, "sigmoid")(inputs)
    classes = layers.Dense(5, "softmax", kernel_initializer=_far_apart(1), name="classes")(x)
    truth = layers.Dense(1, kernel_initializer=_far_apart(2))(layers.Concatenate()([x, classes]))
    truth = layers.Activation("sigmoid", name="truth")(truth)
    kinds = Softmax(name="kinds")(layers.Dense(3, kernel_initializer=_far_apart(3))(x))
    last = layers.Dense(2, name="last")(layers.Concatenate()([x, truth, kinds]))
    model = keras.Model(inputs, [classes, truth, kinds, last])
    entropies = ["sparse_categorical_crossentropy", "binary_crossentropy", "categorical_crossentropy"]
    model.compile(keras.optimizers.SGD(1e-3), [*entropies, "mse"], metrics=[*([one] for one in entropies), ["mae"]])
    return model


def masked() -> keras.Model:
    """Attention takes the mask off what it is given, which a dropout layer of rate 0 has returned as it is."""
    ids = keras.Input((4,), dtype="int32")
    words = layers.Embedding(12, 6, mask_zero=True)(ids)
    x = layers.Dropout(0.0)(words)
    x = layers.Add()([words, layers.MultiHeadAttention(1, 2)(x, x)])
    states = layers.SimpleRNN(2, unroll=True, return_sequences=True)(x)
    results = {"states": states, "attended": x, "words": words}
    model = keras.Model(ids, [layers.Dense(2, name=name)(one) for name, one in results.items()])
    model.compile(keras.optimizers.SGD(0.05), ["mse", "mae", "mse"], weighted_metrics=[["mae"], ["mse"], ["mae"]])
    return model


class Noting(layers.Layer):
    """Hangs two things on what it is given."""

    def call(self, x: Any) -> Any:
        x.factor = tf.reduce_mean(x, axis=-1, keepdims=True)
        x.power = 2
        return x * 2.0


class Using(layers.Layer):
    """Computes with what hangs on its input, and takes it off."""

    def call(self, x: Any) -> Any:
        factor, power = getattr(x, "factor", None), getattr(x, "power", 1)
        x.factor = None
        return x if factor is None else x * factor**power


def noted() -> keras.Model:
    """Layers that change what they are given, which others take later."""
    inputs = keras.Input((6,))
    first = layers.Dense(3, "tanh")(inputs)
    second = Noting()(first)
    third = Using()(layers.Identity()(first))
    fourth = Using()(first)
    model = keras.Model(inputs, layers.Dense(2)(layers.Concatenate()([first, second, third, fourth])))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Open(layers.Layer):
    """Does not say how many examples it returns."""

    def __init__(self, run: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.run = run

    def call(self, x: Any) -> Any:
        return self.run(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return (None, *shape[1:])


def _by_python(x: Any) -> Any:
    @tf.custom_gradient
    def passed(value: Any) -> Any:
        counted = tf.ensure_shape(tf.py_function(lambda one: one, [value], value.dtype), [None, *value.shape[1:]])
        return counted, lambda gradient: gradient

    return passed(x)


def open_shapes() -> keras.Model:
    """Layers of which nobody says how many examples they return, or TensorFlow does not, either."""
    x = inputs = keras.Input((6,))
    for run in (tf.tanh, _by_python):
        x = Open(run)(layers.Dense(3)(x))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def spectra() -> keras.Model:
    """Complex numbers between two layers."""
    inputs = keras.Input((6,))
    x = Open(lambda values: tf.signal.fft(tf.cast(values, tf.complex64)))(layers.Dense(2)(inputs))
    model = keras.Model(inputs, Open(lambda values: tf.math.real(values) - tf.math.imag(values) ** 2)(x))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def stopped() -> keras.Model:
    """The weights of the first layer have no gradient, so that they do not decay."""
    inputs = keras.Input((6,))
    x = Open(tf.stop_gradient)(layers.Dense(3)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse")
    return model


class Adding(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(x**2))
        return x


def looping() -> keras.Model:
    """A loop over the values of another part, and no loss but the one that a layer adds."""
    inputs = keras.Input((6,))
    x = Open(lambda values: tf.map_fn(tf.tanh, values))(layers.Dense(2)(inputs))
    model = keras.Model(inputs, Adding()(x))
    model.compile(keras.optimizers.SGD(0.05))
    return model


class Always(layers.Dropout):
    """Draws in evaluations and predictions, too: numbers of its own, and those that all layers share."""

    def call(self, x: Any) -> Any:
        return super().call(x, training=True) + keras.random.normal(keras.ops.shape(x))


def noisy() -> keras.Model:
    """Both parts call a layer that draws."""
    inputs, noise = keras.Input((6,)), Always(0.5, seed=5)
    model = keras.Model(inputs, noise(layers.Dense(2)(noise(layers.Dense(8)(inputs)))))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Whole(keras.Model):
    """Computes by a call of its own, and stays one call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inside = layers.Dense(4, "tanh")

    def call(self, x: Any) -> Any:
        return self.inside(x)


def within() -> keras.Model:
    """Models within models: one called twice, one with two inputs, one frozen, one of another dtype, one whole."""
    inputs = keras.Input((6,))
    twice = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(6)], name="twice")
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    deep = keras.Model(
        {"left": left, "right": right},
        [twice(layers.Add()([left, right])), layers.Multiply()([left, right])],
        name="deep",
    )
    frozen = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(4)], name="frozen")
    frozen.trainable = False
    given = keras.Input((4,), dtype="float64")
    widened = keras.Model(given, layers.Dense(3)(given), name="widened")
    first, second = deep({"left": twice(inputs), "right": inputs})
    x = layers.Concatenate()([frozen(first, training=False), Whole(name="whole")(second)])
    x = layers.Concatenate()([x, widened(layers.Dense(4)(x))])
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def masked_within() -> keras.Model:
    """A model of words that is given masks, in a model that takes the masks off what it has given."""
    ids, words = keras.Input((4,), dtype="int32"), keras.Input((4, 6))
    x = layers.Add()([words, layers.MultiHeadAttention(1, 2)(words, words)])
    inner = keras.Model(words, layers.SimpleRNN(2, unroll=True, return_sequences=True)(x), name="inner")
    x = layers.Embedding(12, 6, mask_zero=True)(ids)
    x = keras.ops.concatenate([x, inner(x)], axis=-1)
    model = keras.Model(ids, keras.Sequential([keras.Input((4, 8)), layers.Dense(2)], name="head")(x))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


MODELS: dict[str, tuple[Callable[[], keras.Model], Any, Any]] = {
    "heads": (heads, X, [np.arange(ROWS), np.arange(ROWS)[:, None] % 2, np.eye(3)[np.arange(ROWS) % 3], Y]),
    "looping": (looping, X, Y),
    "masked": (masked, IDS, [SERIES] * 3),
    "noisy": (noisy, X, Y),
    "noted": (noted, X, Y),
    "open": (open_shapes, X, Y),
    "spectra": (spectra, X, Y),
    "stopped": (stopped, X, Y),
    "within": (within, X, Y),
    "masked within": (masked_within, IDS, SERIES),
}


def made(name: str) -> tuple[keras.Model, Any, Any]:
    make, x, y = MODELS[name]
    keras.utils.set_random_seed(3)
    return make(), x, y


def trained(model: keras.Model, x: Any, y: Any, *, evaluates: bool) -> dict[str, np.ndarray]:
    options: dict[str, Any] = {"batch_size": ROWS, "verbose": 0}
    history = model.fit(x, y, epochs=2, shuffle=False, validation_data=(x, y) if evaluates else None, **options)
    found = {key: np.array(value) for key, value in history.history.items()}
    if evaluates:
        predicted = keras.tree.flatten(model.predict(x, **options))
        found |= {f"predicted {number}": one for number, one in enumerate(predicted)}
    return found | {f"weight {number}": one for number, one in enumerate(model.get_weights())}


def names(name: str) -> list[str]:
    """Return the names of the calls of a model."""
    return [call.name for call in nested_models.flattened(graph_of(made(name)[0])).calls]


def cut(
    name: str, *, stages: int, schedule: str, evaluates: bool = False, first: int = 1, microbatches: int = 2
) -> dict[str, Any]:
    """Train a model in stages, cut at each place from the first one on, and return what is far from one device.

    A third stage begins with the call behind the one with which the second begins. If asked to, a model that is cut at
    the first place evaluates and predicts too, with the passes that train wherever it is cut.
    """
    wanted = trained(*made(name), evaluates=evaluates)
    places = range(first, len(names(name)) - stages + 2)
    options: dict[str, Any] = {"schedule": schedule, "microbatches": microbatches}
    return {
        str(place): _far(
            name, range(place, place + stages - 1), wanted, evaluates=evaluates and place == first, **options
        )
        for place in places
    }


def _far(
    name: str, places: Sequence[int], wanted: dict[str, np.ndarray], *, evaluates: bool, **options: Any
) -> dict[str, float]:
    def begin(model: keras.Model, parts: int) -> list[str]:
        calls = nested_models.flattened(graph_of(model)).calls
        return [calls[place].name for place in places]

    count = len(places) + 1
    with PipelineStrategy(mesh={"pipeline": count}, replicas_per_worker=count, stages=begin, **options).scope():
        model, x, y = made(name)
    found = trained(model, x, y, evaluates=evaluates)
    assert found.keys() == {key for key in wanted if evaluates or not key.startswith(("val_", "predicted"))}
    far = {
        key: float(np.max(np.abs(one - wanted[key]) / np.maximum(1, np.abs(wanted[key])))) for key, one in found.items()
    }
    return {key: distance for key, distance in far.items() if not distance < 1e-5}


def described() -> list[str]:
    """Print the contents of a model's stages, and return the lines."""
    with PipelineStrategy(stages=2, replicas_per_worker=2).scope():
        block = [layers.Dense(64, name=name) for name in ("first", "second", "third", "fourth")]
        inner = keras.Sequential([keras.Input((64,)), *block], name="inner")
        inputs = keras.Input((64,))
        model = keras.Model(inputs, layers.Dense(2, name="head")(inner(inputs)))
        model.compile("sgd", "mse")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        parallel.describe(model)
    return printed.getvalue().splitlines()
