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
from tfdist.training import step_timestamps
from tfdist.variables import WORKER_INDEX

__all__ = ["Trained", "pid", "prepare", "train", "wait_for_rows"]

_MODEL = "convolutional"
_strategies: list[MultiWorkerMirroredStrategy] = []
_kept: dict[str, keras.Model] = {}
_seconds_of_a_row = [0.0]


class Trained(NamedTuple):
    """One training."""

    seconds: float  # of the last epoch
    settling: int  # changes of shares before it
    moving: int  # changes of shares in it
    shares: list[int]  # at the end
    callback: float  # CPU seconds of the callback's hooks in it, in the thread that steps


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


class _Hook(keras.callbacks.Callback):
    """Measures the CPU time of a callback's hook in the last epoch, and counts the changes of shares before it.

    A subclass of `BalanceShares` would count as a user's callback, whose decisions workers exchange after each batch.
    """

    def __init__(self, balance: BalanceShares) -> None:
        super().__init__()
        self._balance, self._hook = balance, balance.on_train_batch_end
        balance.on_train_batch_end = self._timed  # type: ignore[method-assign]
        self.cost = 0.0
        self.before = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.cost, self.before = 0.0, len(self._balance.changes)

    def _timed(self, batch: int, logs: Any = None) -> None:
        began = time.thread_time()
        self._hook(batch, logs)
        self.cost += time.thread_time() - began


def pid() -> int:
    return os.getpid()


def prepare() -> None:
    """Make the strategy, before TensorFlow starts. Its steps have stamps in every arm, so that arms can share a model.

    The stamps themselves take 14 microseconds of a step.
    """
    _strategies.append(MultiWorkerMirroredStrategy())
    step_timestamps.ask()


def train(
    arm: str, shares: Sequence[int], batch_size: int, steps: int, epochs: int, every: int, waits: bool, name: str
) -> Trained:
    """Train epochs of this many steps, which begin with these shares; in the arm "balanced" the shares move.

    Trainings with the same name train the same model: of two equal ones in a process, one may stay faster by 7 %.
    """
    (strategy,) = _strategies
    if name not in _kept:
        _kept[name] = _new_network(strategy, waits)
    strategy.shares = tuple(shares)
    balance, clock = BalanceShares(every=every), Clock()
    hook = _Hook(balance)
    _kept[name].fit(
        dataset(_MODEL, batch_size).map(_of_any_size),
        steps_per_epoch=steps,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[clock, balance, hook] if arm == "balanced" else [clock],
    )
    moving = len(balance.changes) - hook.before
    return Trained(clock.seconds, hook.before, moving, list(strategy.shares), hook.cost)


def _of_any_size(*batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return a batch whose rows the graph does not know, as those of arrays: steps with constant sizes are faster."""
    return tuple(tf.raw_ops.PlaceholderWithDefault(input=one, shape=[None, *one.shape[1:]]) for one in batch)


def _new_network(strategy: MultiWorkerMirroredStrategy, waits: bool) -> keras.Model:
    with strategy.scope():
        layers = [keras.Input(MODELS[_MODEL].input_shape), _Waits(), keras.layers.Flatten(), keras.layers.Dense(10)]
        network = keras.Sequential(layers) if waits else MODELS[_MODEL].build()
        network.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network
