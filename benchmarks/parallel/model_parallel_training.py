"""The worker processes of this benchmark: the same network and numbers, trained in one of several ways.

Each process computes on one processor, so one process has half the power of two.
"""

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies
from benchmarks.parallel import parallel_networks as networks
from benchmarks.parallel.parallel_networks import bind
from tfdist import cluster as clusters
from tfdist.bench.workers.training_loops import Clock
from tfdist.collectives.traced import TracedCollective

_RATE = 1e-2
_SUMS = 20  # in one graph, to measure one of them
_prepared: dict[str, Any] = {}


def prepare(network: str, mesh: str | None, steps: int, **shape: int) -> None:
    """Build a network and train it for some steps.

    It is the "transformer", or the part of it that all can run: "perceptron", "dtensor".
    """
    cluster = clusters.from_environment()
    bind()
    _prepared["train"] = _dtensor(cluster, shape) if network == "dtensor" else _keras(network, mesh, shape)
    measure(steps)


def measure(steps: int) -> float:
    """Return the seconds of the given number of steps."""
    return float(_prepared["train"](steps))


def sum_seconds(count: int, times: int) -> float:
    """Return the seconds of a sum of this many numbers over the processes, with sums one after the other in a graph."""
    traced = TracedCollective(_prepared["strategy"].workers.collective, bucket_bytes=4 * count)

    @tf.function(autograph=False)
    def sums(x: tf.Tensor) -> tf.Tensor:
        for _ in range(_SUMS):
            (x,) = traced.all_reduce([0.5 * x], ["numbers"])
        return x

    clock, x = Clock(), tf.ones([count])
    sums(x).numpy()
    clock.on_epoch_begin(0)
    for _ in range(times):
        sums(x).numpy()
    clock.on_epoch_end(0)
    return clock.seconds / times / _SUMS


def _keras(name: str, mesh: str | None, shape: dict[str, int]) -> Callable[[int], float]:
    layouts = dict(networks.LAYOUTS) if name == "perceptron" else "auto"
    strategy = None if mesh is None else tfdist.strategies.ModelParallelStrategy(mesh=mesh, layout_map=layouts)
    _prepared["strategy"] = strategy
    x, y = _examples(name, shape)
    with (strategy or tf.distribute.get_strategy()).scope():
        keras.utils.set_random_seed(7)
        network = _network(name, shape)
        loss = "mse" if name == "perceptron" else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.SGD(_RATE), loss)
    batches = tf.data.Dataset.from_tensors((x, y)).repeat()

    def train(steps: int) -> float:
        clock = Clock()
        network.fit(batches, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return clock.seconds

    return train


def _dtensor(cluster: clusters.Cluster, shape: dict[str, int]) -> Callable[[int], float]:
    from benchmarks.parallel import dtensor_perceptron as dtensor

    os.environ.update(dtensor.environment(cluster.require_addresses(), cluster.worker_index))
    mesh = dtensor.mesh_of_processes(1, cluster.num_workers)
    network = dtensor.Perceptron(mesh, networks.numbers(shape["width"], shape["blocks"]), _RATE)
    x, y = map(network.placed, _examples("dtensor", shape))

    def train(steps: int) -> float:
        clock = Clock()
        clock.on_epoch_begin(0)
        for _ in range(steps):
            loss = network.step(x, y)
        network.loss(loss)
        clock.on_epoch_end(0)
        return clock.seconds

    return train


def _network(name: str, shape: dict[str, int]) -> keras.Model:
    width, blocks = shape["width"], shape["blocks"]
    if name == "perceptron":
        return networks.perceptron(width, blocks)
    return networks.transformer(width, blocks, heads=shape["heads"], length=shape["length"], words=shape["words"])


def _examples(name: str, shape: dict[str, int]) -> tuple[Any, Any]:
    """Return one batch; each place of a text is one example of the perceptron."""
    draw = np.random.default_rng(7)
    rows, length = shape["batch_size"], shape["length"]
    if name == "transformer":
        words = draw.integers(shape["words"], size=(rows, length + 1)).astype(np.int32)
        return words[:, :-1], words[:, 1:]
    x, y = (draw.normal(size=(rows * length, shape["width"])).astype(np.float32) for _ in range(2))
    return x, y
