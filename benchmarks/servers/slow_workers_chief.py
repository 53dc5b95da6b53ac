"""The chief of the benchmark of stragglers: one strategy for each mode, over the same workers and servers."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.bench.workers.training_loops import Clock
from tfdist.bench.workers.workloads import MODELS
from tfdist.errors import TfdistError
from tfdist.strategies import ParameterServerStrategy
from tfdist.validation import counted

_MODEL = MODELS["convolutional"]
_BATCHES = 4  # different ones
_SIDE, _PRODUCTS = 384, 400

# TensorFlow connects a process to one cluster, so all modes share the tasks that the first strategy starts. `close` of
# one would end them for all.
_strategies: dict[str, ParameterServerStrategy] = {}
_fits: dict[str, Callable[[int], float]] = {}
_workers = 0


def start(workers: int, servers: int, bounds: Mapping[str, int | None]) -> list[int]:
    """Start the tasks, make a strategy for each mode, and return the workers' processes."""
    global _workers
    _workers = workers
    for mode, bound in bounds.items():
        _strategies[mode] = ParameterServerStrategy(local_workers=workers, local_servers=servers, max_staleness=bound)
    tasks = next(iter(_strategies.values()))._tasks
    assert tasks is not None
    return [tasks.pid("worker", index) for index in range(workers)]


def alone(worker: int) -> float:
    """Return the seconds that a worker needs for a chain of products of matrices, while no other worker computes."""
    with tf.device(f"/job:worker/replica:0/task:{worker}"):
        float(_chain(tf.constant(2)))  # traced and warm
        began = time.perf_counter()
        float(_chain(tf.constant(_PRODUCTS)))
    return time.perf_counter() - began


@tf.function
def _chain(products: tf.Tensor) -> tf.Tensor:
    matrix = tf.eye(_SIDE)
    for _ in tf.range(products):
        matrix = tf.matmul(matrix, matrix)
    return tf.reduce_sum(matrix)


def prepare(mode: str, batch_size: int, steps: int) -> None:
    """Build a mode's model, and train it for this number of steps, which trace and warm it on every worker."""
    strategy = _strategies[mode]
    with strategy.scope():
        network = _MODEL.build()
        network.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = _dataset(batch_size * (_workers if mode == "synchronous" else 1))

    def fit(steps: int) -> float:
        clock = Clock()
        network.fit(dataset, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[clock])
        return clock.seconds

    _fits[mode] = fit
    fit(steps)


def measure(mode: str, steps: int) -> dict[str, Any]:
    """Return the seconds of the given number of steps of `fit`, and the staleness of their gradients."""
    strategy = _strategies[mode]
    before = strategy.staleness.counts.copy()
    seconds = _fits[mode](steps)
    if strategy.lost_workers:
        lost = counted(strategy.lost_workers, "lost worker")
        raise TfdistError(f"{mode}: {lost}, so what was measured counts for nothing.")
    found = strategy.staleness.counts - before
    return {"seconds": seconds, "staleness": {str(staleness): count for staleness, count in found.items()}}


def end() -> None:
    for strategy in _strategies.values():
        strategy.close()


def _dataset(batch_size: int) -> tf.data.Dataset:
    draw = np.random.default_rng(7)
    x = draw.normal(size=(_BATCHES * batch_size, *_MODEL.input_shape)).astype(np.float32)
    y = draw.integers(_MODEL.classes, size=_BATCHES * batch_size)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder=True).cache().repeat()
