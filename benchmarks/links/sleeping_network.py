"""A model whose layers sleep instead of computing: its steps show what links cost, on a machine of any load."""

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["sleeping"]

BATCH = 32
_LAYERS, _SHAPE = 6, (512, 1024)  # 2 MiB of weights each, so that two layers fill a bucket
_SECONDS = 0.020, 0.040  # of a layer, forward and backward, for a whole batch


class SleepingMatrix(keras.layers.Layer):
    """A layer that passes its input on after a time in proportion to its rows; so does its gradient."""

    def build(self, shape: Any) -> None:
        """Create the weights; their gradient is there when the backward pass has slept."""
        self._weight = self.add_weight(shape=_SHAPE, initializer="zeros")

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def passed(x: Any, weight: Any) -> Any:
            def back(gradient: Any) -> Any:
                slept = _slept(gradient, _SECONDS[1])
                return slept, tf.fill(tf.shape(weight), tf.reduce_mean(slept))

            return _slept(x, _SECONDS[0]), back

        return passed(x, tf.convert_to_tensor(self._weight.value))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def _slept(value: Any, seconds: float) -> Any:
    def sleep(value: Any) -> Any:
        time.sleep(seconds * int(value.shape[0]) / BATCH)
        return value

    return tf.ensure_shape(tf.py_function(sleep, [value], value.dtype), value.shape)


def sleeping() -> tuple[keras.Model, Any, Any]:
    """Return the model, compiled in the current scope, and a batch for it."""
    keras.utils.set_random_seed(3)
    layers = [SleepingMatrix() for _ in range(_LAYERS)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    draw = np.random.default_rng(3)
    return model, draw.normal(size=(BATCH, 16)).astype("float32"), draw.normal(size=(BATCH, 1)).astype("float32")
