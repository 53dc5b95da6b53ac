"""A script for `tfdist run` that trains the model of the recovery benchmark with `fit` and BackupAndRestore.

python -m benchmarks.jobs.recovery_fit FOLDER MEGABYTES BATCH_SIZE STEPS

Horovod's script trains the same model, whose state has a given size, on the same batch.
"""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore

_LAYERS = 8
_NUMBERS_PER_WEIGHT = 3  # the weight itself, and two slots of Adam


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
    """Return a batch for the model, whose targets are its inputs."""
    return np.random.default_rng(7).normal(size=(batch_size, *model.input_shape[1:])).astype(np.float32)


def variables(model: keras.Model) -> list[tf.Variable]:
    """Return all state that has to be restored: weights, slots, and the optimizer's numbers."""
    return [variable.value for variable in (*model.variables, *model.optimizer.variables)]


def note(path: str | os.PathLike[str], event: str, **content: Any) -> None:
    """Append a line of JSON, with the clock that all processes of this machine share."""
    line = json.dumps({"event": event, "clock": time.monotonic(), **content})
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def note_size(path: str | os.PathLike[str], model: keras.Model) -> None:
    """Note the number of variables, and their bytes."""
    sizes = [math.prod(variable.shape) * variable.dtype.size for variable in variables(model)]
    note(path, "size", variables=len(sizes), bytes=sum(sizes))


def main(folder: str, megabytes: float, batch_size: int, steps: int) -> None:
    """Train for the given number of steps."""
    with tfdist.strategies.from_environment().scope():
        model = perceptron(megabytes)
    if tfdist.cluster.from_environment().is_chief:
        note_size(f"{folder}/notes", model)
    x = examples(model, batch_size)
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(batch_size).cache().repeat()
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[BackupAndRestore(f"{folder}/backup")])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
