"""Losses, optimizers and examples that several models share."""

from typing import Any

import numpy as np

from ecosystem.entry import Examples
from tfdist.compat.keras import keras_trainer
from tfdist.verify.feature import keras

LENGTH, WORDS, CLASSES, SIDE = 8, 31, 5, 32


def sgd() -> Any:
    """Momentum, whose steps are as large as the gradients: a wrong gradient shows in the weights."""
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adamw() -> Any:
    # Where a gradient is zero but for rounding, Adam without a larger epsilon makes whole steps of the rounding.
    return keras.optimizers.AdamW(1e-3, weight_decay=0.01, epsilon=1e-3, global_clipnorm=1.0)


def logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def accuracy() -> dict[str, Any]:
    return {"metrics": [keras.metrics.SparseCategoricalAccuracy()]}


def weighted_accuracy() -> dict[str, Any]:
    return {"weighted_metrics": [keras.metrics.SparseCategoricalAccuracy()]}


def pictures(random: np.random.Generator, rows: int) -> Examples:
    """Pictures of five classes that differ in brightness."""
    labels = random.integers(0, CLASSES, rows)
    noise = random.normal(size=(rows, SIDE, SIDE, 3))
    return (0.3 * labels[:, None, None, None] + noise).astype("float32"), labels.astype("int32"), None


def texts(random: np.random.Generator, rows: int, length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Words, and a mask: texts have different lengths, so replicas count different numbers of words."""
    lengths = random.integers(2, length + 1, rows)
    mask = np.arange(length) < lengths[:, None]
    words = random.integers(1, WORDS, (rows, length)) * mask
    return words.astype("int32"), mask.astype("int32")


def next_words(random: np.random.Generator, rows: int) -> Examples:
    """Texts, and at each place the next word; places behind the end of a text weigh nothing."""
    words, mask = texts(random, rows, LENGTH + 1)
    inputs = {"token_ids": words[:, :-1], "padding_mask": mask[:, :-1]}
    return inputs, words[:, 1:], mask[:, 1:].astype("float32")


def settled(model: Any) -> Any:
    """The model without what differs by design with the number of replicas, inside other layers as well.

    Batch normalization uses the statistics of the global batch, as one device does, and nothing is dropped at random.
    """
    for layer in keras_trainer.layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
        elif isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return model
