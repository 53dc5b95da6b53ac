"""What the worker processes of a step benchmark run: the same model and data, trained in one of several ways.

- ``tensorflow loop``: TensorFlow's own strategy, in a hand-written loop;
- ``horovod loop``: Horovod's `DistributedGradientTape` around a plain model, in the loop of its synthetic benchmark;
- ``tfdist loop``: tfdist's strategy, in the same loop, which has none of what `fit` needs to be right;
- ``tfdist fit``: tfdist's strategy, Keras' `compile` and `fit`;
- ``tfdist fit, several steps``: the same with ``steps_per_execution``.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.bench.workers import strategies
from tfdist.bench.workers.clock import Clock
from tfdist.bench.workers.models import MODELS

# arm -> runs that many steps and returns their seconds; a worker process keeps what it has built
_prepared: dict[str, Callable[[int], float]] = {}


def prepare(arm: str, strategy: str, model: str, global_batch_size: int, steps_per_execution: int, steps: int) -> None:
    """Build the model of an arm and run it for so many steps, which trace and warm it."""
    if arm not in _prepared:
        _prepared[arm] = _runner(arm, strategy, model, global_batch_size, steps_per_execution)
    _prepared[arm](steps)


def measure(arm: str, steps: int) -> float:
    """Return the seconds that this worker needs for so many steps."""
    return _prepared[arm](steps)


def _dataset(model: str, global_batch_size: int) -> tf.data.Dataset:
    shape, classes = MODELS[model].input_shape, MODELS[model].classes
    draw = np.random.default_rng(7)
    x = draw.normal(size=(4 * global_batch_size, *shape)).astype(np.float32)
    y = draw.integers(classes, size=4 * global_batch_size)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch_size, drop_remainder=True).cache().repeat()


def _horovod_loop(model: str, global_batch_size: int) -> Callable[[int], float]:
    """Return a runner of the loop that Horovod's documentation and synthetic benchmark show."""
    hvd = strategies.horovod()
    network = MODELS[model].build()
    optimizer = keras.optimizers.SGD(0.01)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(network.trainable_variables)
    variables = [variable.value for variable in network.trainable_variables]
    hvd.broadcast_variables([v.value for v in (*network.variables, *optimizer.variables)], root_rank=0)
    iterator = iter(_dataset(model, global_batch_size // hvd.size()))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(y, network(x, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply(gradients, network.trainable_variables)
        return loss

    return _timed(lambda: step(*next(iterator)))


def _loop(strategy: tf.distribute.Strategy, model: str, global_batch_size: int) -> Callable[[int], float]:
    """Return a runner of the loop that TensorFlow's guide to custom training shows."""
    with strategy.scope():
        network = MODELS[model].build()
        optimizer = keras.optimizers.SGD(0.01)
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        optimizer.build(network.trainable_variables)
    iterator = iter(strategy.experimental_distribute_dataset(_dataset(model, global_batch_size)))

    def replica_step(batch: Any) -> tf.Tensor:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loss_function(y, network(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
        return loss

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(batch,)), axis=None)

    return _timed(lambda: step(next(iterator)))


def _timed(step: Callable[[], tf.Tensor]) -> Callable[[int], float]:
    def run(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            loss = step()
        float(loss)  # as `fit` does at the end of an epoch
        return time.perf_counter() - began

    return run


def _fit(
    strategy: tf.distribute.Strategy, model: str, global_batch_size: int, steps_per_execution: int
) -> Callable[[int], float]:
    """Return a runner of plain Keras `fit`; the seconds are those of its epoch."""
    with strategy.scope():
        network = MODELS[model].build()
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.SGD(0.01), loss_function, steps_per_execution=steps_per_execution)
    dataset = _dataset(model, global_batch_size)

    def run(steps: int) -> float:
        clock = Clock()
        network.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[clock])
        return clock.seconds

    return run


def _runner(
    arm: str, strategy: str, model: str, global_batch_size: int, steps_per_execution: int
) -> Callable[[int], float]:
    if arm == "tensorflow loop":
        return _loop(strategies.of_tensorflow(strategy), model, global_batch_size)
    if arm == "horovod loop":
        return _horovod_loop(model, global_batch_size)
    if arm == "tfdist loop":
        return _loop(strategies.of_tfdist(strategy), model, global_batch_size)
    return _fit(strategies.of_tfdist(strategy), model, global_batch_size, steps_per_execution)
