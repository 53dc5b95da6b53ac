"""What the worker processes of a race to an accuracy run: the same task, by Horovod's loop or by `fit` with a codec."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.bench.codecs import task
from tfdist.bench.codecs.choice import HOROVOD, load
from tfdist.bench.codecs.steps import optimizer
from tfdist.bench.workers import loops, strategies

__all__ = ["Check", "examples", "train"]

_MOMENTUM = 0.9


class Check(NamedTuple):
    """How far training has come.

    Attributes:
        seconds: of training alone since the first step, which traces and is not counted.
        accuracy: on the test images.
    """

    seconds: float
    accuracy: float


def train(
    arm: str,
    data: str,
    seed: int,
    global_batch_size: int,
    learning_rate: float,
    steps: int,
    steps_per_check: int,
    modules: Sequence[str],
) -> list[Check]:
    """Train a new model, and return what it has come to after each few steps.

    Args:
        arm: a codec with options, or `HOROVOD`.
        data: folder, see `task.load`.
        seed: of the weights and of the order of examples.
        global_batch_size: examples of a step over all workers.
        learning_rate: of SGD with momentum.
        steps: how many.
        steps_per_check: how many there are between two looks at the accuracy.
        modules: that register codecs of the user's.
    """
    load(modules)
    if arm == HOROVOD:
        rate = keras.optimizers.SGD(learning_rate, momentum=_MOMENTUM)
        return _by_horovod(rate, data, seed, global_batch_size, steps, steps_per_check)
    strategy = strategies.of_tfdist("multi-worker")
    batches = task.training(task.load(data, "train"), global_batch_size, steps, seed)
    images, labels = task.load(data, "test")
    test = tf.data.Dataset.from_tensor_slices((images, labels)).batch(len(labels)).cache()
    with strategy.scope():
        model = task.build(seed)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(arm, learning_rate, _MOMENTUM), loss, metrics=["accuracy"])
    model.fit(batches, steps_per_epoch=1, epochs=1, validation_data=test, verbose=0)  # traces
    curve = _Curve()
    model.fit(
        batches,
        steps_per_epoch=steps_per_check,
        epochs=steps // steps_per_check,
        validation_data=test,
        verbose=0,
        callbacks=[curve],
    )
    return curve.checks


class _Curve(keras.callbacks.Callback):
    """Notes the time of training and the accuracy of each epoch, which is as many steps as there are between checks."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Check] = []
        self._began = self._spent = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stop it: what follows is no training."""
        self._spent += time.perf_counter() - self._began

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note both."""
        self.checks.append(Check(self._spent, float((logs or {})["val_accuracy"])))


def _by_horovod(
    rate: keras.optimizers.Optimizer, data: str, seed: int, global_batch_size: int, steps: int, steps_per_check: int
) -> list[Check]:
    hvd = strategies.horovod()
    begin, end = (global_batch_size * rank // hvd.size() for rank in (hvd.rank(), hvd.rank() + 1))
    batches = task.training(task.load(data, "train"), global_batch_size, steps, seed)
    mine = batches.map(lambda x, y: (x[begin:end], y[begin:end])).prefetch(tf.data.AUTOTUNE)
    test = task.load(data, "test")
    model = task.build(seed)
    step = loops.horovod_step(model, rate)
    float(step(*next(iter(mine))))  # traces
    checks, spent, ahead = list[Check](), 0.0, iter(mine)
    for _ in range(steps // steps_per_check):
        began = time.perf_counter()
        for _ in range(steps_per_check):
            loss = step(*next(ahead))
        float(loss)
        spent += time.perf_counter() - began
        found = tf.argmax(model(test.images, training=False), axis=1, output_type=tf.int32)
        checks.append(Check(spent, float(tf.reduce_mean(tf.cast(found == test.labels, tf.float32)))))
    return checks


def examples(data: str) -> int:
    """Return how many examples there are to train on."""
    return len(task.load(data, "train").labels)
