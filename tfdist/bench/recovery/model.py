"""What both sides of the benchmark of recoveries train: a model whose state has a certain size, on one batch."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_LAYERS = 8
_NUMBERS_PER_WEIGHT = 3  # itself, and two slots of Adam


def perceptron(megabytes: float) -> keras.Model:
    """Return eight dense layers, compiled with Adam, whose weights and slots have this size."""
    keras.utils.set_random_seed(7)
    width = round(math.sqrt(megabytes * 1e6 / 4 / _NUMBERS_PER_WEIGHT / _LAYERS))
    layers = [keras.layers.Dense(width, activation="tanh", name=f"dense_{i}") for i in range(_LAYERS)]
    model = keras.Sequential([keras.Input((width,), name="x"), *layers], name="perceptron")
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def examples(model: keras.Model, batch_size: int) -> Any:
    """Return a batch for the model: what goes in shall come out."""
    return np.random.default_rng(7).normal(size=(batch_size, *model.input_shape[1:])).astype(np.float32)


def variables(model: keras.Model) -> list[tf.Variable]:
    """Return everything that has to be brought back: weights, slots, and the optimizer's numbers."""
    return [variable.value for variable in (*model.variables, *model.optimizer.variables)]


def note(path: str | os.PathLike[str], event: str, **content: Any) -> None:
    """Append a line of JSON, with the clock that all processes of this machine share."""
    line = json.dumps({"event": event, "clock": time.monotonic(), **content})
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def note_size(path: str | os.PathLike[str], model: keras.Model) -> None:
    """Note how many variables there are, and their bytes."""
    sizes = [math.prod(variable.shape) * variable.dtype.size for variable in variables(model)]
    note(path, "size", variables=len(sizes), bytes=sum(sizes))
