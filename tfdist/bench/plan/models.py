"""The models that are divided: layers alike, convolutions, convolutions with skips, and a transformer."""

from typing import Any

import keras
import numpy as np

from tfdist.bench.model_parallel import networks

__all__ = ["made"]


def made(name: str) -> tuple[keras.Model, Any, Any]:
    """Return a model that is compiled, in the scope of now, and a batch for it.

    Args:
        name: one of `benchmark.MODELS`.
    """
    keras.utils.set_random_seed(3)
    layers, draw, length = keras.layers, np.random.default_rng(3), 64
    shape: tuple[int, ...]
    if name == "dense":
        hidden = [layers.Dense(1024, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])
        shape, classes = (128, 784), 10
    elif name == "transformer":
        model = networks.transformer(128, 2, heads=4, length=length, words=96)
        shape, classes = (32, length), 96
    else:
        model = _convolutions(skips=name == "residual")
        shape, classes = (64, 28, 28, 1), 10
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    is_text = name == "transformer"
    x = draw.integers(classes, size=shape) if is_text else draw.normal(size=shape).astype("float32")
    return model, x, draw.integers(classes, size=shape if is_text else shape[:1])


def _convolutions(*, skips: bool) -> keras.Model:
    layers = keras.layers
    inputs = values = keras.Input((28, 28, 1))
    for filters in (16, 32, 32, 32):
        values = layers.Conv2D(filters, 3, padding="same", strides=2 if filters == 16 else 1)(values)
        if skips:
            inner = layers.Activation("relu")(layers.BatchNormalization()(values))
            values = values + layers.Conv2D(filters, 3, padding="same")(inner)
        else:
            values = layers.Activation("relu")(values)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(values)))
