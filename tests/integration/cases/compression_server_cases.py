"""Compression beside parameter servers: what workers leave on servers, and what the chief makes of it."""

from typing import Any

import keras
import numpy as np
import parameter_server_cases
import tensorflow as tf

from tfdist.compression.registry import codec_of
from tfdist.optimizers import DistributedOptimizer
from tfdist.training.parameter_servers import transport


class Linear(keras.layers.Layer):
    """Its gradient is the same whatever its weights are."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight((shape[-1], 40), initializer="zeros")

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.kernel)


def encoded(codec: str) -> dict[str, Any]:
    """Make one update, and return what workers have left, and how far the update is from the gradient."""
    left: list[tuple[str, int]] = []
    plain = transport.left_on_server

    def noting(value: Any, device: str) -> list[tf.Tensor]:
        tensors = plain(value, device)
        left.extend((tensor.dtype.name, tensor.shape.num_elements()) for tensor in tensors)
        return tensors

    with parameter_server_cases.strategy().scope():
        model = keras.Sequential([keras.Input((64,)), Linear()])
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), compression=codec_of(codec))
        model.compile(optimizer, lambda y, p: keras.ops.mean(p, axis=-1))
    x = np.random.default_rng(3).normal(size=(8, 64)).astype("float32")
    transport.left_on_server = noting
    try:
        model.fit(x, np.zeros((8, 1)), batch_size=8, verbose=0)
    finally:
        transport.left_on_server = plain
    gradient = np.repeat(x.mean(axis=0)[:, np.newaxis] / 40, 40, axis=1)
    (kernel,) = model.get_weights()
    off = np.linalg.norm(kernel + gradient) / np.linalg.norm(gradient)
    return {"left": sorted(set(left)), "off": float(off)}
