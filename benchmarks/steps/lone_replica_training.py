"""One side of `python -m benchmarks lone-replica`: a process that trains and prints the times of steps, as JSON."""

import contextlib
import json
import resource
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_BATCH = 32


def _dense() -> keras.Model:
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])


def _convolutional() -> keras.Model:
    layers = []
    for filters in (32, 64):
        layers += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D()]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def _scope(arm: str) -> contextlib.AbstractContextManager[Any]:
    if arm == "tfdist":
        import tfdist.strategies  # not in the processes of the peers, whose memory is measured

        scope: contextlib.AbstractContextManager[Any] = tfdist.strategies.from_environment().scope()
        return scope
    return tf.distribute.MirroredStrategy(["/cpu:0"]).scope() if arm == "TensorFlow" else contextlib.nullcontext()


def _train(arm: str, model: str, steps: int, epochs: int) -> dict[str, float]:
    """Train an epoch that traces, then others; the fastest counts, because other programs disturbed it least."""
    with _scope(arm):
        network = {"dense": _dense, "convolutional": _convolutional}[model]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    draw = np.random.default_rng(0)
    x = draw.normal(size=(_BATCH * steps, *network.input_shape[1:])).astype(np.float32)
    y = draw.integers(10, size=len(x))
    seconds, processor = [], []
    for _ in range(1 + epochs):
        began, used = time.perf_counter(), time.process_time()
        network.fit(x, y, batch_size=_BATCH, verbose=0)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": min(seconds[1:]) / steps, "processor": min(processor[1:]) / steps, "megabytes": peak}


if __name__ == "__main__":
    of_arm, of_model, count, repeats = sys.argv[1:]
    sys.stdout.write(json.dumps(_train(of_arm, of_model, int(count), int(repeats))))
