"""The trainings that a benchmark measures: `fit`, and the hand-written loops of the peers.

Each loop is a runner: it trains a number of steps, and returns their seconds and this worker's traffic meanwhile.
`prepare` and `measure` run the arms of `tfdist bench step`:

- ``tensorflow loop``: TensorFlow's own strategy, in a hand-written loop;
- ``horovod loop``: Horovod's `DistributedGradientTape` around a plain model, in the loop of its synthetic benchmark;
- ``tfdist loop``: tfdist's strategy, in the same loop, without the parts that make `fit` right;
- ``tfdist fit``: tfdist's strategy, Keras' `compile` and `fit`;
- ``tfdist fit, several steps``: the same with ``steps_per_execution``.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.bench.workers import slow_network, workloads
from tfdist.bench.workers.workloads import MODELS


class Clock(keras.callbacks.Callback):
    """A callback that records the last epoch's times, without `fit`'s work per call, and its traffic."""

    began = ended = 0.0
    before: slow_network.Sent | None = None
    sent: slow_network.Sent | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.before = slow_network.sent()
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.ended = time.perf_counter()
        self.sent = slow_network.since(self.before)


class Measured(NamedTuple):
    """The seconds of the steps, and this worker's traffic through `slow_network.DEVICE`; None if there is none."""

    seconds: float
    sent: slow_network.Sent | None


Runner = Callable[[int], Measured]


def dataset(model: str, global_batch_size: int) -> tf.data.Dataset:
    """Return endless batches of random numbers for a model, the same in every process."""
    shape, classes = MODELS[model].input_shape, MODELS[model].classes
    draw = np.random.default_rng(7)
    x = draw.normal(size=(4 * global_batch_size, *shape)).astype(np.float32)
    y = draw.integers(classes, size=4 * global_batch_size)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch_size, drop_remainder=True).cache().repeat()


def horovod(model: str, global_batch_size: int) -> Runner:
    """Return a runner of the loop in Horovod's documentation and synthetic benchmark."""
    network = MODELS[model].build()
    step = horovod_step(network, keras.optimizers.SGD(0.01))
    iterator = iter(dataset(model, global_batch_size // workloads.horovod().size()))
    return _timed(lambda: step(*next(iterator)))


def horovod_step(network: keras.Model, optimizer: keras.optimizers.Optimizer) -> Callable[[Any, Any], tf.Tensor]:
    """Return a step of Horovod's loop, on this worker's examples and labels; all workers begin with equal weights."""
    hvd = workloads.horovod()
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(network.trainable_variables)
    variables = [variable.value for variable in network.trainable_variables]
    hvd.broadcast_variables([v.value for v in (*network.variables, *optimizer.variables)], root_rank=0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(y, network(x, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply(gradients, network.trainable_variables)
        return loss

    return step


def tensorflow(strategy: tf.distribute.Strategy, model: str, global_batch_size: int) -> Runner:
    """Return a runner of the loop in TensorFlow's guide to custom training."""
    with strategy.scope():
        network = MODELS[model].build()
        optimizer = keras.optimizers.SGD(0.01)
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        optimizer.build(network.trainable_variables)
    iterator = iter(strategy.experimental_distribute_dataset(dataset(model, global_batch_size)))

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


def _timed(step: Callable[[], tf.Tensor]) -> Runner:
    def run(steps: int) -> Measured:
        sent, began = slow_network.sent(), time.perf_counter()
        for _ in range(steps):
            loss = step()
        float(loss)  # as `fit` does at the end of an epoch
        return Measured(time.perf_counter() - began, slow_network.since(sent))

    return run


def fit(
    strategy: tf.distribute.Strategy,
    model: str,
    global_batch_size: int,
    *,
    steps_per_execution: int = 1,
    optimizer: Callable[[], keras.optimizers.Optimizer] | None = None,
) -> Runner:
    with strategy.scope():
        network = MODELS[model].build()
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        chosen = keras.optimizers.SGD(0.01) if optimizer is None else optimizer()
        network.compile(chosen, loss_function, steps_per_execution=steps_per_execution)
    batches = dataset(model, global_batch_size)

    def run(steps: int) -> Measured:
        meter = Clock()
        network.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[meter])
        return Measured(meter.seconds, meter.sent)

    return run


# arm -> its runner; a worker process keeps what it has built
_prepared: dict[str, Runner] = {}


def prepare(arm: str, strategy: str, model: str, global_batch_size: int, steps_per_execution: int, steps: int) -> None:
    if arm not in _prepared:
        _prepared[arm] = _runner(arm, strategy, model, global_batch_size, steps_per_execution)
    _prepared[arm](steps)


def measure(arm: str, steps: int) -> float:
    return _prepared[arm](steps).seconds


def _runner(arm: str, strategy: str, model: str, global_batch_size: int, steps_per_execution: int) -> Runner:
    if arm == "tensorflow loop":
        return tensorflow(workloads.of_tensorflow(strategy), model, global_batch_size)
    if arm == "horovod loop":
        return horovod(model, global_batch_size)
    if arm == "tfdist loop":
        return tensorflow(workloads.of_tfdist(strategy), model, global_batch_size)
    found = workloads.of_tfdist(strategy)
    return fit(found, model, global_batch_size, steps_per_execution=steps_per_execution)
