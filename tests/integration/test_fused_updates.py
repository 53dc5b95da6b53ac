"""SGD in one pass over memory: the op of TensorFlow is used where it can be, and gives Keras' numbers bit for bit."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras import optimizer as keras_optimizer

pytestmark = pytest.mark.quick

SHAPE = (7, 3)
FUSED = {"ResourceApplyGradientDescent", "ResourceApplyKerasMomentum"}
KINDS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "plain": lambda: keras.optimizers.SGD(0.037),
    "momentum": lambda: keras.optimizers.SGD(0.037, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: keras.optimizers.SGD(0.037, momentum=0.9, nesterov=True, clipnorm=1.0),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.037, momentum=0.9)),
}


class Halved(keras.optimizers.SGD):
    """An update of the user's own."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient / 2, variable, learning_rate)


def trained(optimizer: keras.optimizers.Optimizer, *, dtype: str = "float32", rows: bool = False) -> Any:
    """The weights after five steps, and which ops of TensorFlow changed them."""
    draw = np.random.default_rng(5)
    variable = keras.Variable(draw.normal(size=SHAPE), dtype=dtype)
    optimizer.build([variable])

    @tf.function
    def step(gradient: tf.Tensor) -> None:
        given = tf.IndexedSlices(gradient[:2], tf.constant([4, 4]), SHAPE) if rows else gradient
        optimizer.apply([given], [variable])

    for _ in range(5):
        step(tf.constant(draw.normal(size=SHAPE), dtype))
    graphs = step.get_concrete_function(tf.TensorSpec(SHAPE, dtype)).graph.as_graph_def()
    used = [*graphs.node, *(node for function in graphs.library.function for node in function.node_def)]
    return variable.numpy(), {node.op for node in used} & FUSED


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_keras(kind: str, dtype: str) -> None:
    expected, unused = trained(KINDS[kind](), dtype=dtype)
    one = KINDS[kind]()
    keras_optimizer.override(one)
    found, used = trained(one, dtype=dtype)
    assert not unused
    assert used
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        pytest.param(lambda: Halved(0.1, momentum=0.9), {}, id="own update"),
        pytest.param(lambda: keras.optimizers.SGD(0.1, momentum=0.9), {"rows": True}, id="rows of a table"),
        pytest.param(lambda: keras.optimizers.SGD(0.1), {"dtype": "float16"}, id="16 bits"),
        pytest.param(lambda: keras.optimizers.Adam(0.1), {}, id="Adam"),
    ],
)
def test_what_is_not_that_update_stays_as_it_is(make: Any, given: dict[str, Any]) -> None:
    expected, _ = trained(make(), **given)
    one = make()
    keras_optimizer.override(one)
    found, used = trained(one, **given)
    assert not used
    np.testing.assert_array_equal(found, expected)
