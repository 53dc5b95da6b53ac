"""The workers of the benchmark of shares: a model for each training, all under one strategy."""

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.bench.workers.training_loops import Clock, dataset
from tfdist.bench.workers.workloads import MODELS
from tfdist.callbacks import BalanceShares
from tfdist.strategies import MultiWorkerMirroredStrategy
from tfdist.variables import WORKER_INDEX

__all__ = ["Trained", "pid", "prepare", "train", "wait_for_rows"]

_MODEL = "convolutional"
_strategies: list[MultiWorkerMirroredStrategy] = []
_seconds_of_a_row = [0.0]


class Trained(NamedTuple):
    """One training.

    Attributes:
        seconds: of the last epoch.
        settling: changes of shares before it.
        moving: changes of shares in it.
        shares: at the end.
        callback: CPU seconds of the callback's hooks in it, in the thread that steps.
    """

    seconds: float
    settling: int
    moving: int
    shares: list[int]
    callback: float


class _Waits(keras.layers.Layer):
    """A layer that takes this worker's given time for a row, whatever the load of the machine."""

    def call(self, inputs: Any) -> Any:
        waited = tf.numpy_function(_wait, [tf.shape(inputs)[0]], [tf.float32])
        with tf.control_dependencies(waited):
            return tf.identity(inputs)


def _wait(rows: Any) -> Any:
    time.sleep(_seconds_of_a_row[0] * int(rows))
    return np.float32(0)


def wait_for_rows(seconds: Sequence[float]) -> None:
    """Let each worker wait for this time for each row of a model that waits."""
    _seconds_of_a_row[0] = seconds[int(os.environ[WORKER_INDEX.name])]


class _Timed(BalanceShares):
    """Measures the CPU time of its hook in the last epoch."""

    cost = 0.0
    before = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.cost, self.before = 0.0, len(self.changes)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        began = time.thread_time()
        super().on_train_batch_end(batch, logs)
        self.cost += time.thread_time() - began


def pid() -> int:
    return os.getpid()


def prepare() -> None:
    """Make the strategy, before TensorFlow starts."""
    _strategies.append(MultiWorkerMirroredStrategy())


def train(
    arm: str, shares: Sequence[int], batch_size: int, steps: int, epochs: int, every: int, waits: bool
) -> Trained:
    """Train epochs of this many steps, which begin with these shares; in the arm "balanced" the shares move.

    Each training has a model of its own: of two equal ones in the same process, one may stay faster by 7 %.
    """
    (strategy,) = _strategies
    with strategy.scope():
        layers = [keras.Input(MODELS[_MODEL].input_shape), _Waits(), keras.layers.Flatten(), keras.layers.Dense(10)]
        network = keras.Sequential(layers) if waits else MODELS[_MODEL].build()
        network.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    strategy.shares = tuple(shares)
    balance, clock = _Timed(every=every), Clock()
    network.fit(
        dataset(_MODEL, batch_size),
        steps_per_epoch=steps,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[clock, balance] if arm == "balanced" else [clock],
    )
    moving = len(balance.changes) - balance.before
    return Trained(clock.seconds, balance.before, moving, list(strategy.shares), balance.cost)
