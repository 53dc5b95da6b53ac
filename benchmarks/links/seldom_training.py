"""Trainings in worker processes, which reduce by their arm; bytes and rates are those of the interface."""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from benchmarks.links.seldom_data import TASKS
from tfdist.bench.workers import slow_network
from tfdist.compression import PowerSGD
from tfdist.optimizers import DistributedOptimizer
from tfdist.strategies import LocalSGD, MultiWorkerMirroredStrategy

__all__ = ["Trained", "prepare", "train"]

_WINDOW_SECONDS = 1.0
_strategies: dict[str, MultiWorkerMirroredStrategy] = {}


class Trained(NamedTuple):
    """One training of an arm."""

    seconds: list[float]  # of only the training until each check of the accuracy, without the first steps, which trace
    accuracy: list[float]  # on the test images at each check, of the mean of the weights
    bytes: list[int]  # sent by this worker from check to check while it trained, without those of checks
    peak: float  # the most bytes that the worker sent in a second of training
    stepping: list[float]  # seconds of only the steps from check to check, without the checks


def prepare(schedule: str) -> None:
    """Make the strategies, before TensorFlow starts."""
    _strategies["seldom"] = MultiWorkerMirroredStrategy(synchronization=schedule)
    _strategies["alone"] = MultiWorkerMirroredStrategy(synchronization=LocalSGD(every=1 << 29))
    _strategies["every step"] = MultiWorkerMirroredStrategy()


def train(
    arm: str, task: str, seed: int, width: int, batch_size: int, steps: int, checks: int, by_class: bool
) -> Trained:
    """Train a new model, and return the measurements."""
    learned = TASKS[task]()
    optimizers: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
        "powersgd": lambda: DistributedOptimizer(learned.optimizer(), compression=PowerSGD(rank=2)),
        "auto": lambda: DistributedOptimizer(learned.optimizer(), compression="auto"),
    }
    strategy = _strategies.get(arm, _strategies["every step"])
    with strategy.scope():
        keras.utils.set_random_seed(seed)
        hidden = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
        model = keras.Sequential([*learned.first(), *hidden, keras.layers.Dense(learned.classes)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizers.get(arm, learned.optimizer)(), loss, metrics=["accuracy"])
    draw = np.random.default_rng(seed)
    count = batch_size * steps * (checks + 1)
    rows = _rows(draw, learned.kinds, count, batch_size, strategy.workers.count, by_class)
    data = tf.data.Dataset.from_tensor_slices((learned.x[rows], learned.y[rows]))
    data = data.batch(batch_size, drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices(learned.test).batch(1000).cache()
    curve = _Curve(steps)
    model.fit(data, steps_per_epoch=steps, epochs=checks + 1, validation_data=test, verbose=0, callbacks=[curve])
    return curve.trained()


def _rows(draw: Any, kinds: Any, count: int, batch_size: int, workers: int, by_class: bool) -> Any:
    """The rows of all batches; if divided by class, each worker's part of a batch has kinds of its own."""
    if not by_class:
        return np.concatenate([draw.permutation(len(kinds)) for _ in range(-(-count // len(kinds)))])[:count]
    sizes = np.diff([batch_size * worker // workers for worker in range(workers + 1)])
    mine = [(np.flatnonzero(kinds % workers == worker), sizes[worker]) for worker in range(workers)]
    return np.concatenate([draw.choice(rows, size) for _ in range(count // batch_size) for rows, size in mine])


class _Curve(keras.callbacks.Callback):
    """A record of seconds and bytes of training, and of the accuracy, of each epoch except the first, which traces."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._seconds: list[float] = []
        self._accuracy: list[float] = []
        self._bytes: list[int] = []
        self._stepping: list[float] = []
        self._began = self._spent = 0.0
        self._sent: Any = None
        self._meter: _Meter | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch:
            self._began, self._sent = time.perf_counter(), slow_network.sent()
            self._meter = self._meter or _Meter()
            self._meter.counts = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch == self._steps - 1 and self._meter is not None:
            self._meter.counts = False
            self._stepping.append(time.perf_counter() - self._began)
            sent = slow_network.since(self._sent)
            self._bytes.append(0 if sent is None else sent.bytes)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._meter is not None:
            self._spent += time.perf_counter() - self._began

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch:
            self._seconds.append(self._spent)
            self._accuracy.append(float((logs or {})["val_accuracy"]))

    def trained(self) -> Trained:
        assert self._meter is not None
        return Trained(self._seconds, self._accuracy, self._bytes, self._meter.end(), self._stepping)


class _Meter:
    """A reader of the interface's sent bytes, which keeps the most of a window in which training continued."""

    def __init__(self) -> None:
        self.counts = False
        self._most = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before, then = slow_network.sent(), time.perf_counter()
        while not self._ended.wait(_WINDOW_SECONDS):
            sent, now = slow_network.since(before), time.perf_counter()
            if self.counts and sent is not None:
                self._most = max(self._most, sent.bytes / (now - then))
            before, then = slow_network.sent(), now

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._most
