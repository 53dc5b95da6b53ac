"""`parallel_networks.perceptron` in TensorFlow's DTensor: an oracle for numbers, and a peer for speed.

Keras' variables are not DTensor's, so the network is written by hand. A step is that of `compile(SGD(rate), "mse")`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.experimental import dtensor

__all__ = ["Perceptron", "environment", "mesh_of_devices", "mesh_of_processes"]

_EPSILON = 1e-3  # of Keras' LayerNormalization
# a layer's two weights, and the axis of the mesh along which each dim is cut
_LAID: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "normal": ((dtensor.UNSHARDED,), (dtensor.UNSHARDED,)),
    "wide": ((dtensor.UNSHARDED, "model"), ("model",)),
    "narrow": (("model", dtensor.UNSHARDED), (dtensor.UNSHARDED,)),
}


def mesh_of_devices(batch: int, model: int) -> dtensor.Mesh:
    """Return a mesh of all logical CPUs of this process."""
    devices = [f"CPU:{number}" for number in range(batch * model)]
    return dtensor.create_mesh([("batch", batch), ("model", model)], devices=devices)


def mesh_of_processes(batch: int, model: int) -> dtensor.Mesh:
    """Return a mesh of processes with one CPU each, by DTensor's environment variables."""
    dtensor.initialize_accelerator_system("CPU")
    return dtensor.create_distributed_mesh([("batch", batch), ("model", model)], device_type="CPU")


def environment(addresses: Sequence[str], index: int) -> dict[str, str]:
    """Return the variables by which DTensor identifies a process among others."""
    return {
        "DTENSOR_CLIENT_ID": str(index),
        "DTENSOR_NUM_CLIENTS": str(len(addresses)),
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": ",".join(addresses),
    }


class Perceptron:
    """The network, with weights in parts along the mesh's axis "model" and examples along "batch".

    Args:
        mesh: of devices.
        weights: first values, see `parallel_networks.numbers`.
        rate: the learning rate of gradient descent.
    """

    def __init__(self, mesh: dtensor.Mesh, weights: Mapping[str, Sequence[NDArray[np.float32]]], rate: float) -> None:
        self._mesh = mesh
        self._rate = rate
        self._blocks = len(weights) // len(_LAID)
        self._variables = {
            name: [dtensor.DVariable(self._laid(value, dims)) for value, dims in zip(values, _dims(name), strict=True)]
            for name, values in weights.items()
        }
        self._step: Callable[..., Any] = tf.function(self._trained)

    def placed(self, batch: NDArray[np.float32]) -> tf.Tensor:
        """Place examples on the mesh."""
        return self._laid(batch, ("batch", dtensor.UNSHARDED))

    def step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Train on a batch that `placed` has returned, and return its loss on the mesh."""
        return self._step(x, y)

    def loss(self, found: tf.Tensor) -> float:
        """Return a loss as a number."""
        return float(self._whole(found, 0))

    def weights(self) -> dict[str, list[NDArray[np.float32]]]:
        """Return the weights of each layer, whole."""
        return {name: [self._whole(one, len(one.shape)) for one in held] for name, held in self._variables.items()}

    def _laid(self, value: NDArray[np.float32], dims: Sequence[str]) -> tf.Tensor:
        whole = dtensor.Layout.replicated(self._mesh, value.ndim)
        copied = dtensor.copy_to_mesh(tf.constant(value), whole)
        return dtensor.relayout(copied, dtensor.Layout(list(dims), self._mesh))

    def _whole(self, value: Any, axes: int) -> Any:
        return dtensor.unpack(dtensor.relayout(value, dtensor.Layout.replicated(self._mesh, axes)))[0].numpy()

    def _trained(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        every = [one for held in self._variables.values() for one in held]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self._predicted(x) - y))
        for variable, gradient in zip(every, tape.gradient(loss, every), strict=True):
            variable.assign_sub(self._rate * dtensor.relayout(gradient, variable.layout))
        return loss

    def _predicted(self, x: tf.Tensor) -> tf.Tensor:
        for number in range(self._blocks):
            (scale, shift), (wide, above), (narrow, beside) = (self._variables[f"{kind}_{number}"] for kind in _LAID)
            mean = tf.reduce_mean(x, axis=-1, keepdims=True)
            spread = tf.reduce_mean(tf.square(x - mean), axis=-1, keepdims=True)
            normal = (x - mean) * tf.math.rsqrt(spread + _EPSILON) * scale + shift
            x = x + tf.nn.relu(normal @ wide + above) @ narrow + beside
        return x


def _dims(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _LAID[name.partition("_")[0]]
