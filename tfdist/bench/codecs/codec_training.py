"""Trainings with a codec in worker processes: steps of a model, and digits until an accuracy is reached.

Horovod trains the same model in its own loop.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tfdist.data
from tfdist.bench.codecs.codec_choice import HOROVOD, NOOP, codec_of, load
from tfdist.bench.workers import training_loops, workloads
from tfdist.gradients.reduction import reducer
from tfdist.optimizers import DistributedOptimizer

_MOMENTUM = 0.9

# arm -> trains so many steps; a worker process keeps what it has built
_prepared: dict[str, training_loops.Runner] = {}


def prepare(arm: str, model: str, global_batch_size: int, steps: int, modules: Sequence[str]) -> None:
    """Build the model of an arm, and trace and warm it with this many steps."""
    load(modules)
    if arm == HOROVOD:
        _prepared[arm] = training_loops.horovod(model, global_batch_size)
    else:
        strategy = workloads.of_tfdist("multi-worker")
        _prepared[arm] = training_loops.fit(strategy, model, global_batch_size, optimizer=lambda: _optimizer(arm, 0.01))
    _prepared[arm](steps)


def measure(arm: str, steps: int) -> training_loops.Measured:
    return _prepared[arm](steps)


def _optimizer(arm: str, learning_rate: float, momentum: float = 0.0) -> keras.optimizers.Optimizer:
    """Return SGD without the momentum that the codec has itself; codecs compress from the first step on."""
    if arm == NOOP:
        return _Unreduced(keras.optimizers.SGD(learning_rate, momentum=momentum))
    codec = dataclasses.replace(codec_of(arm), start_after=0)
    inner = keras.optimizers.SGD(learning_rate, momentum=0.0 if codec.has_momentum else momentum)
    return DistributedOptimizer(inner, compression=codec)


class _Unreduced(DistributedOptimizer):
    """An optimizer that updates with the gradients of this replica alone: the cost of a step without reduction."""

    @property
    def reduction_choices(self) -> reducer.Choices:
        return reducer.Choices(compression=lambda inner: _AsTheyAre())


class _AsTheyAre(reducer.GradientReducer):
    def reduce(self, gradients: list[reducer.Gradient]) -> list[reducer.Gradient]:
        return gradients


class Check(NamedTuple):
    """The seconds of training alone, without the first step, which traces, and the accuracy on the test images."""

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
    load(modules)
    if arm == HOROVOD:
        rate = keras.optimizers.SGD(learning_rate, momentum=_MOMENTUM)
        return _by_horovod(rate, data, seed, global_batch_size, steps, steps_per_check)
    strategy = workloads.of_tfdist("multi-worker")
    batches = _batches(_digits(data, "train"), global_batch_size, steps, seed)
    images, labels = _digits(data, "test")
    test = tf.data.Dataset.from_tensor_slices((images, labels)).batch(len(labels)).cache()
    with strategy.scope():
        model = _perceptron(seed)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(_optimizer(arm, learning_rate, _MOMENTUM), loss, metrics=["accuracy"])
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
    """A callback that records the training time and the accuracy of each epoch; an epoch lasts from check to check."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Check] = []
        self._began = self._spent = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._began = time.perf_counter()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._spent += time.perf_counter() - self._began

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.checks.append(Check(self._spent, float((logs or {})["val_accuracy"])))


def _by_horovod(
    rate: keras.optimizers.Optimizer, data: str, seed: int, global_batch_size: int, steps: int, steps_per_check: int
) -> list[Check]:
    hvd = workloads.horovod()
    begin, end = (global_batch_size * rank // hvd.size() for rank in (hvd.rank(), hvd.rank() + 1))
    batches = _batches(_digits(data, "train"), global_batch_size, steps, seed)
    mine = batches.map(lambda x, y: (x[begin:end], y[begin:end])).prefetch(tf.data.AUTOTUNE)
    test = _digits(data, "test")
    model = _perceptron(seed)
    step = training_loops.horovod_step(model, rate)
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
    return len(_digits(data, "train").labels)


class _Part(NamedTuple):
    """Examples: images, float32, from 0 to 1, shape (examples, 64); labels, int32, shape (examples,)."""

    images: NDArray[np.float32]
    labels: NDArray[np.int32]


def _digits(folder: str | Path, part: str) -> _Part:
    examples = list(tfdist.data.open(Path(folder, part)))
    images = np.stack([one["image"] for one in examples]).astype(np.float32).reshape(len(examples), -1)
    return _Part(images, np.array([one["label"] for one in examples], np.int32))


def _perceptron(seed: int) -> keras.Model:
    """Return the classifier, not compiled, equal for equal seeds: 2.2 M parameters, 8.7 MB."""
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def _batches(part: _Part, global_batch_size: int, steps: int, seed: int) -> tf.data.Dataset:
    """Return the batches of all workers for this many steps, in an order that only the seed decides."""
    draw, count = np.random.default_rng(seed), len(part.labels)
    epochs = -(-global_batch_size * steps // count)
    order = np.concatenate([draw.permutation(count) for _ in range(epochs)])
    examples = tf.data.Dataset.from_tensor_slices((part.images[order], part.labels[order]))
    return examples.batch(global_batch_size, drop_remainder=True).repeat()
