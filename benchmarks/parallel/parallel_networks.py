"""Networks that the worker processes of these benchmarks train, and the one processor that each process has.

The perceptron is the part of the transformer that DTensor can run without Keras.
"""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist import cluster as clusters

__all__ = ["LAYOUTS", "NARROWER", "bind", "numbers", "perceptron", "planned", "transformer"]

#: the layouts of weights of `perceptron` on a mesh with the axis "model": columns, then rows
LAYOUTS: Mapping[str, tuple[str | None, ...]] = {
    ".*wide_[0-9]+/kernel": (None, "model"),
    ".*wide_[0-9]+/bias": ("model",),
    ".*narrow_[0-9]+/kernel": ("model", None),
}
#: the factor by which the layer by columns is wider
NARROWER = 4


def perceptron(width: int, blocks: int) -> keras.Model:
    """Return the blocks of a transformer without attention: normalized, wide, narrow, added to the input."""
    layers = keras.layers
    x = inputs = keras.Input((width,))
    for number in range(blocks):
        normal = layers.LayerNormalization(name=f"normal_{number}")(x)
        wide = layers.Dense(NARROWER * width, "relu", name=f"wide_{number}")(normal)
        x = layers.Add()([x, layers.Dense(width, name=f"narrow_{number}")(wide)])
    return keras.Model(inputs, x)


def numbers(width: int, blocks: int) -> dict[str, list[NDArray[np.float32]]]:
    """Return initial weights for each layer of `perceptron` by its name, the same in every process."""
    draw = np.random.default_rng(11)

    def kernel(rows: int, columns: int) -> NDArray[np.float32]:
        return (draw.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)

    found: dict[str, list[NDArray[np.float32]]] = {}
    for number in range(blocks):
        found[f"normal_{number}"] = [np.ones(width, np.float32), np.zeros(width, np.float32)]
        found[f"wide_{number}"] = [kernel(width, NARROWER * width), np.zeros(NARROWER * width, np.float32)]
        found[f"narrow_{number}"] = [kernel(NARROWER * width, width), np.zeros(width, np.float32)]
    return found


def transformer(width: int, blocks: int, *, heads: int, length: int, words: int) -> keras.Model:
    """Return a transformer that predicts the next word of each place."""
    layers = keras.layers
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(inputs)
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal, use_causal_mask=True)
        between = [layers.Dense(NARROWER * width, "gelu"), layers.Dense(width)]
        x = x + keras.Sequential(between)(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(words)(layers.LayerNormalization()(x)))


def planned(name: str) -> tuple[keras.Model, Any, Any]:
    """Return a model of `plan_accuracy.MODELS`, compiled in the current scope, and a batch for it."""
    keras.utils.set_random_seed(3)
    layers, draw, length = keras.layers, np.random.default_rng(3), 64
    shape: tuple[int, ...]
    if name == "dense":
        hidden = [layers.Dense(1024, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])
        shape, classes = (128, 784), 10
    elif name == "transformer":
        model = transformer(128, 2, heads=4, length=length, words=96)
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


def bind() -> None:
    """Bind the children of this thread to one processor, a different one for each worker."""
    worker = clusters.from_environment().worker_index
    if hasattr(os, "sched_setaffinity"):
        every = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {every[worker % len(every)]})
    tf.config.threading.set_intra_op_parallelism_threads(1)
