"""The worker processes of an all-reduce benchmark: one backend each, on tensors whose sum is known.

- ``tensorflow``: TensorFlow's MultiWorkerMirroredStrategy, unchanged, with all tensors of a call in one pack;
- ``horovod``: an `allreduce` of Horovod for each tensor, as its users write it;
- ``multi-worker`` and ``ring``: tfdist's strategies, one `all_reduce` of a list of tensors in a replica;
- ``native``: tfdist's own collectives, one `all_reduce` of the list; behind links each worker is a host. A name after a
  colon is the algorithm between hosts.

As in a step, the tensors are written anew before each all-reduce, by an op whose results nothing else needs. The clock
runs in the graph, from the last tensor that is written to the last sum.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist.bench.all_reduce.reduced_message import values
from tfdist.bench.workers import workloads
from tfdist.bench.workers.workloads import MODELS
from tfdist.cluster.cluster_values import split_address
from tfdist.collectives.backends import native_collective
from tfdist.collectives.collective import Collective

#: sums, and when the tensors were there and when the sums were, in seconds since 1970
Timed = tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]

# engine -> one all-reduce of what was prepared last; what was prepared before is let go of
_prepared: dict[str, Callable[[], Timed]] = {}


def start(engine: str) -> None:
    if engine == "horovod":
        workloads.horovod()
    elif engine.startswith("native"):
        _native()
    else:
        _strategy_of(engine)


def gradients(model: str) -> list[int]:
    return [int(np.prod(variable.shape)) for variable in MODELS[model].build().trainable_variables]


def prepare(engine: str, elements: Sequence[int], warm_up: int) -> int:
    """Trace an all-reduce of float32 tensors, warm it up, and return the number of wrong elements."""
    _prepared.pop(engine, None)
    _one()  # outside of any graph
    workers = clusters.from_environment()
    tensors = [
        tf.Variable(values(count, tensor=tensor, worker=workers.worker_index)) for tensor, count in enumerate(elements)
    ]
    if engine == "horovod":
        _prepared[engine] = _horovod(tensors)
    elif engine.startswith("native"):
        _prepared[engine] = _through_collective(_native(), tensors)
    else:
        _prepared[engine] = _through_strategy(_strategy_of(engine), tensors)
    for _ in range(warm_up):
        sums, _, _ = _prepared[engine]()
    wrong = 0
    for tensor, (count, total) in enumerate(zip(elements, sums, strict=True)):
        expected = sum(values(count, tensor=tensor, worker=worker) for worker in range(workers.num_workers))
        wrong += int(np.count_nonzero(total.numpy() != expected))
    return wrong


def measure(engine: str, calls: int) -> list[tuple[float, float]]:
    """Return the times at which each call had its tensors and its sums, after one call that does not count."""
    reduce = _prepared[engine]
    times = [reduce()[1:] for _ in range(calls + 1)][1:]
    return [(float(began), float(ended)) for began, ended in times]


def _strategy_of(engine: str) -> tf.distribute.Strategy:
    if engine == "tensorflow":
        return workloads.of_tensorflow("multi-worker")
    return workloads.of_tfdist(engine, "tensorflow" if engine == "multi-worker" else None)


@functools.cache
def _native() -> Collective:
    carrier = _strategy_of("multi-worker").workers.collective
    workers = clusters.from_environment()
    mine, _ = split_address("address", workers.require_addresses()[workers.worker_index])
    device = f"/job:worker/replica:0/task:{workers.worker_index}/device:CPU:0"
    return native_collective.of_workers(carrier, device=device, address=mine)


@functools.cache
def _one() -> tf.Variable:
    """Return a 1 that no graph can fold."""
    return tf.Variable(1.0)


def _timed(tensors: list[tf.Variable], reduce: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> Timed:
    written = [tensor * _one() for tensor in tensors]
    with tf.control_dependencies(written):
        began = tf.timestamp()
    with tf.control_dependencies([began]):
        sums = reduce([tf.identity(tensor) for tensor in written])
    with tf.control_dependencies(sums):
        ended = tf.timestamp()
    return sums, began, ended


def _through_collective(collective: Collective, tensors: list[tf.Variable]) -> Callable[[], Timed]:
    @tf.function
    def timed() -> Timed:
        return _timed(tensors, lambda written: collective.all_reduce(written, key="benchmark"))

    return timed


def _through_strategy(strategy: Any, tensors: list[tf.Variable]) -> Callable[[], Timed]:
    def reduce(written: list[tf.Tensor]) -> list[tf.Tensor]:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, written)

    @tf.function
    def timed() -> Timed:
        found = strategy.run(lambda: _timed(tensors, reduce))
        return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], found)

    return timed


def _horovod(tensors: list[tf.Variable]) -> Callable[[], Timed]:
    hvd = workloads.horovod()
    names = [f"benchmark_{index}_{tensor.shape.num_elements()}" for index, tensor in enumerate(tensors)]

    def reduce(written: list[tf.Tensor]) -> list[tf.Tensor]:
        return [hvd.allreduce(tensor, op=hvd.Sum, name=name) for tensor, name in zip(written, names, strict=True)]

    @tf.function
    def timed() -> Timed:
        return _timed(tensors, reduce)

    return timed
