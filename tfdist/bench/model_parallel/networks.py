"""The networks of this benchmark: a transformer, and the part of it that DTensor can run without Keras."""

from collections.abc import Mapping

import keras
import numpy as np
from numpy.typing import NDArray

__all__ = ["LAYOUTS", "NARROWER", "numbers", "perceptron", "transformer"]

#: how a weight of `perceptron` lies on a mesh with the axis "model": columns, then rows
LAYOUTS: Mapping[str, tuple[str | None, ...]] = {
    ".*wide_[0-9]+/kernel": (None, "model"),
    ".*wide_[0-9]+/bias": ("model",),
    ".*narrow_[0-9]+/kernel": ("model", None),
}
#: how much wider the layer by columns is
NARROWER = 4


def perceptron(width: int, blocks: int) -> keras.Model:
    """Return the blocks of a transformer without attention: normalised, wide, narrow, added to what came in."""
    layers = keras.layers
    x = inputs = keras.Input((width,))
    for number in range(blocks):
        normal = layers.LayerNormalization(name=f"normal_{number}")(x)
        wide = layers.Dense(NARROWER * width, "relu", name=f"wide_{number}")(normal)
        x = layers.Add()([x, layers.Dense(width, name=f"narrow_{number}")(wide)])
    return keras.Model(inputs, x)


def numbers(width: int, blocks: int) -> dict[str, list[NDArray[np.float32]]]:
    """Return first weights for each layer of `perceptron` by its name, the same in every process."""
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
