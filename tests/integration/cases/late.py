"""Parts of a small network that come late on purpose: a layer in both of its passes, an optimizer in its update.

Each is given `late`, which takes "forward", "backward" or "update" and returns a function of a tensor; see `behind`.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

#: units of the last layer, by whose kernel `LateSGD` knows when to be late
CLASSES = 10

Late = Callable[[str], Callable[[tf.Tensor], tf.Tensor]]


def behind(pause: Callable[[], np.int64]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function that returns a tensor as it is, after this has run behind it."""

    def through(tensor: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tensor]):
            paused = tf.numpy_function(pause, [], tf.int64)
        with tf.control_dependencies([paused]):
            return tf.identity(tensor)

    return through


class LateLayer(keras.layers.Layer):
    """Passes on what it is given, late in both directions."""

    def __init__(self, late: Late) -> None:
        super().__init__()
        self._late = late

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def passed(values: tf.Tensor) -> Any:
            return self._late("forward")(values), self._late("backward")

        return passed(inputs)


class LateSGD(keras.optimizers.SGD):
    """Updates the kernel of the last layer late."""

    def __init__(self, late: Late) -> None:
        super().__init__(0.01)
        self._late = late

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        is_last = tuple(variable.shape)[1:] == (CLASSES,)
        super().update_step(self._late("update")(gradient) if is_last else gradient, variable, learning_rate)


def network(width: int, late: Late) -> keras.Model:
    """Return a compiled network of layers of this width, of 64 numbers an example, that is late in its passes."""
    layers = [
        keras.layers.Dense(width, "relu"),
        LateLayer(late),
        keras.layers.Dense(width),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=LateSGD(late), loss=loss)
    return model
