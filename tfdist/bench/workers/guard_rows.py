"""One side of `tfdist bench guard`: measures rows with whatever release of tfdist it finds, and writes them as JSON.

It is copied and run by its path, `python guard_rows.py FILE SCALE alone`, or `workers` on two workers of `tfdist run`.
It uses public names alone, which an older release has too.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

_REPEATS = 3  # of which the fastest counts: other programs were least in its way
_BATCH = 32
_CHAINED = 8


def _dense() -> keras.Model:
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])


def _convolutional() -> keras.Model:
    layers = [keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.Conv2D(64, 3, activation="relu")]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def _fastest(action: Callable[[], object]) -> float:
    """The seconds of the fastest repetition, after one that traces."""
    action()
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _step_of_fit(build: Callable[[], keras.Model], steps: int) -> float:
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    draw = np.random.default_rng(0)
    x = draw.normal(size=(_BATCH * steps, *model.input_shape[1:])).astype(np.float32)
    y = draw.integers(10, size=len(x))
    return _fastest(lambda: model.fit(x, y, batch_size=_BATCH, verbose=0)) / steps


def _reading(rows: int) -> float:
    """A pass over shuffled rows."""
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        columns = {"x": draw.normal(size=(rows, 32)).astype(np.float32), "y": draw.integers(10, size=rows)}
        tfdist.data.write(columns, folder)
        found = tfdist.data.read(folder, global_batch_size=256, seed=1)
        return _fastest(lambda: sum(1 for _ in found))


def _all_reduce(strategy: tf.distribute.Strategy, size: int, calls: int) -> float:
    """A mean of so many numbers over the workers: each call of a graph has several, one after another."""

    def replica(tensor: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        for _ in range(_CHAINED):
            tensor = context.all_reduce(tf.distribute.ReduceOp.MEAN, tensor)
        return tensor

    tensor = tf.ones([size])
    chain = tf.function(lambda: strategy.run(replica, (tensor,)), autograph=False)
    return _fastest(lambda: [chain() for _ in range(calls)]) / (calls * _CHAINED)


def alone(scale: int) -> dict[str, float]:
    """The rows of one process."""
    strategy = tfdist.strategies.from_environment()
    with strategy.scope():
        step = _step_of_fit(_dense, 30 * scale)
    return {"fit, one replica": step, "reading shuffled rows": _reading(2000 * scale)}


def workers(scale: int) -> dict[str, float]:
    """The rows of two workers."""
    strategy = tfdist.strategies.from_environment()
    with strategy.scope():
        found = {
            "fit, two workers, small": _step_of_fit(_dense, 30 * scale),
            "fit, two workers, convolutional": _step_of_fit(_convolutional, 10 * scale),
        }
    return {
        **found,
        "all-reduce of 4 KB": _all_reduce(strategy, 1 << 10, 5 * scale),
        "all-reduce of 4 MB": _all_reduce(strategy, 1 << 20, scale),
    }


def main(file: str, scale: str, part: str) -> None:
    measured = {"alone": alone, "workers": workers}[part](int(scale))
    if tfdist.cluster.from_environment().worker_index == 0:
        content = {"tfdist": str(Path(tfdist.__file__).parent.parent), "seconds": measured}
        Path(file).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
