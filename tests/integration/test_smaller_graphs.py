"""Graphs of a step with fewer operations than those of Keras and TensorFlow, and with the same numbers, bit for bit."""

import gc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras.symbolic import known_outputs
from tfdist.compat.tensorflow.steps import static_packs
from tfdist.compat.tensorflow.steps.traced_call import TracedCall

pytestmark = pytest.mark.quick


class Scaled(keras.layers.Layer):
    """A user's own layer."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return 2 * x


def model(*, own: bool = False) -> keras.Model:
    """Return a compiled model with two inputs and two outputs, whose loss and metrics are not built."""
    first, second = keras.Input((4,), name="first"), keras.Input((2, 2), name="second")
    hidden = keras.layers.Concatenate()([first, keras.layers.Flatten()(second)])
    hidden = Scaled()(hidden) if own else hidden
    outputs = {
        "class": keras.layers.Dense(3, "softmax", name="class")(hidden),
        "value": keras.layers.Dense(1, name="value")(hidden),
    }
    made = keras.Model({"first": first, "second": second}, outputs)
    losses = {"class": "sparse_categorical_crossentropy", "value": "mse"}
    made.compile("adam", losses, metrics={"class": ["accuracy"]}, weighted_metrics={"value": ["mae"]})
    return made


def spec(rows: int | None = None, width: int = 4) -> Any:
    x = {"first": tf.TensorSpec((rows, width)), "second": tf.TensorSpec((rows, 2, 2))}
    return x, {"class": tf.TensorSpec((rows, 1), tf.int64), "value": tf.TensorSpec((rows, 1))}, None


def described(built: keras.Model) -> list[Any]:
    every = [*built.metrics_variables, *built.optimizer.variables]
    names = [type(one).__name__ + one.name for one in keras_trainer.metrics(built)]
    return [names, [(one.path.split("/", 1)[-1], one.shape, one.dtype) for one in every]]


def test_a_graph_of_layers_knows_its_outputs() -> None:
    expected, found = model(), model()
    expected._symbolic_build(data_batch=spec())
    assert known_outputs.build(found, spec())
    assert keras_trainer.is_built(found)
    assert described(found) == described(expected)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        pytest.param(lambda: model(own=True), spec(), id="own layer"),
        pytest.param(model, spec(width=5), id="other shape"),
        pytest.param(model, (*spec(), tf.TensorSpec((None,))), id="batch of one's own"),
        pytest.param(lambda: keras.Sequential([keras.layers.Dense(1)]), (tf.TensorSpec((None, 4)), None), id="unbuilt"),
    ],
)
def test_keras_builds_other_models(make: Callable[[], keras.Model], given: Any) -> None:
    made = make()
    before = len(made.variables)
    assert not known_outputs.build(made, given)
    assert len(made.variables) == before


@pytest.mark.parametrize("bytes_per_pack", [0, 1, 40, 1000])
def test_packs_are_those_of_tensorflow(bytes_per_pack: int) -> None:
    values = [np.arange(size, dtype="float32").reshape(shape) + size for size, shape in SIZES]
    sent: list[list[int]] = []

    def reduce(tensors: list[tf.Tensor], options: Any) -> list[tf.Tensor]:
        sent.append([one.shape.num_elements() for one in tensors])
        assert options.bytes_per_pack == 1
        return [2 * one for one in tensors]

    @tf.function
    def summed(*given: tf.Tensor) -> list[tf.Tensor]:
        assert static_packs.can_pack(list(given))
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
        return static_packs.sums(reduce, list(given), options)

    for mine, value in zip(summed(*values), values, strict=True):
        np.testing.assert_array_equal(mine, 2 * value)
    assert sent == [PACKS[bytes_per_pack][::-1]]


SIZES = [(6, (2, 3)), (1, ()), (5, (5,)), (0, (0, 2)), (4, (1, 2, 2))]
#: the elements of each pack: TensorFlow begins another when a pack has more than ``bytes_per_pack``
PACKS = {0: [16], 1: [6, 1, 5, 4], 40: [12, 4], 1000: [16]}


def test_no_garbage_is_collected_while_a_graph_is_made() -> None:
    seen = []

    @tf.function(input_signature=[])
    def step() -> tf.Tensor:
        seen.append(gc.isenabled())
        return tf.constant(1)

    assert gc.isenabled()
    assert int(TracedCall(step).get_concrete_function()()) == 1
    assert seen == [False]
    assert gc.isenabled()
