"""A trial on the handwritten digits, the same for every search; it needs only Keras."""

import os
import time
from typing import Any

import keras
import numpy as np

BATCH = 64
UNITS = (32, 64, 128)
DROPOUT = (0.0, 0.5)
RATE = (1e-4, 1e-1)


def build(units: int, dropout: float, rate: float) -> keras.Model:
    """Return a compiled convolutional network."""
    layers = [
        layer
        for filters in (16, 32)
        for layer in (keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPooling2D())
    ]
    head = [keras.layers.Flatten(), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(dropout)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *head, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def read(path: str) -> dict[str, Any]:
    """Return the arguments of `fit` that are the same for all trials."""
    with np.load(path) as found:
        return {
            "x": found["x"],
            "y": found["y"],
            "batch_size": BATCH,
            "validation_data": (found["x_validation"], found["y_validation"]),
        }


def note(path: str) -> None:
    """Write down that a trial has ended: the time, the process, and the CPU time of the process."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{time.time()} {os.getpid()} {time.process_time()}\n")
