"""What the worker processes of an all-reduce benchmark run: one engine each, on tensors whose sum is known.

- ``tensorflow``: TensorFlow's MultiWorkerMirroredStrategy as it is, all tensors of a call in one pack;
- ``horovod``: an `allreduce` of Horovod for each tensor, as its users write it;
- ``multi-worker`` and ``ring``: tfdist's strategies, one `all_reduce` of a list of tensors in a replica;
- ``native``: tfdist's own collectives, one `all_reduce` of the list; another address counts as another host.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist.bench.all_reduce.tensors import values
from tfdist.bench.workers import strategies
from tfdist.bench.workers.models import MODELS
from tfdist.cluster.values import split_address
from tfdist.collectives import native
from tfdist.collectives.base import Collective

# engine -> one all-reduce of what was prepared last; what was prepared before is let go of
_prepared: dict[str, Callable[[], list[tf.Tensor]]] = {}


def start(engine: str) -> None:
    """Bring the workers of an engine together.

    Raises:
        MissingDependencyError: the engine is not installed.
    """
    if engine == "horovod":
        strategies.horovod()
    elif engine == "native":
        _native()
    else:
        _strategy_of(engine)


def gradients(model: str) -> list[int]:
    """Return the numbers of elements of a model's gradients, in the order of its variables."""
    return [int(np.prod(variable.shape)) for variable in MODELS[model].build().trainable_variables]


def prepare(engine: str, elements: Sequence[int], warm_up: int) -> int:
    """Trace an all-reduce of float32 tensors, run it until it is warm, and return how many elements of it are wrong.

    Args:
        engine: see the head of this file.
        elements: of each tensor.
        warm_up: calls, at least 1; the last one's result is looked at.
    """
    _prepared.pop(engine, None)
    workers = clusters.from_environment()
    tensors = [
        tf.Variable(values(count, tensor=tensor, worker=workers.worker_index)) for tensor, count in enumerate(elements)
    ]
    if engine == "horovod":
        _prepared[engine] = _horovod(tensors)
    elif engine == "native":
        _prepared[engine] = _through_collective(_native(), tensors)
    else:
        _prepared[engine] = _through_strategy(_strategy_of(engine), tensors)
    for _ in range(warm_up):
        sums = _prepared[engine]()
    wrong = 0
    for tensor, (count, total) in enumerate(zip(elements, sums, strict=True)):
        expected = sum(values(count, tensor=tensor, worker=worker) for worker in range(workers.num_workers))
        wrong += int(np.count_nonzero(total.numpy() != expected))
    return wrong


def measure(engine: str, calls: int) -> float:
    """Return the seconds of one call, a mean over so many, after one that is not counted."""
    reduce = _prepared[engine]
    reduce()
    began = time.perf_counter()
    for _ in range(calls):
        reduce()
    return (time.perf_counter() - began) / calls


def _strategy_of(engine: str) -> tf.distribute.Strategy:
    if engine == "tensorflow":
        return strategies.of_tensorflow("multi-worker")
    return strategies.of_tfdist(engine, "tensorflow" if engine == "multi-worker" else None)


@functools.cache
def _native() -> Collective:
    carrier = _strategy_of("multi-worker").workers.collective
    workers = clusters.from_environment()
    hosts = [split_address("address", address)[0] for address in workers.require_addresses()]
    mine = hosts[workers.worker_index]
    device = f"/job:worker/replica:0/task:{workers.worker_index}/device:CPU:0"
    return native.of_workers(carrier, device=device, address=mine, host=mine if len(set(hosts)) > 1 else None)


def _through_collective(collective: Collective, tensors: list[tf.Variable]) -> Callable[[], list[tf.Tensor]]:
    @tf.function
    def reduce() -> list[tf.Tensor]:
        return collective.all_reduce([tf.identity(tensor) for tensor in tensors], key="benchmark")

    return reduce


def _through_strategy(strategy: Any, tensors: list[tf.Variable]) -> Callable[[], list[tf.Tensor]]:
    def replica() -> list[tf.Tensor]:
        read = [tf.identity(tensor) for tensor in tensors]  # an op of the replica, as gradients are
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, read)

    @tf.function
    def reduce() -> list[tf.Tensor]:
        return strategy.run(replica)

    return lambda: [strategy.experimental_local_results(total)[0] for total in reduce()]


def _horovod(tensors: list[tf.Variable]) -> Callable[[], list[tf.Tensor]]:
    hvd = strategies.horovod()
    names = [f"benchmark_{index}_{tensor.shape.num_elements()}" for index, tensor in enumerate(tensors)]

    @tf.function
    def reduce() -> list[tf.Tensor]:
        return [
            hvd.allreduce(tf.identity(tensor), op=hvd.Sum, name=name)
            for tensor, name in zip(tensors, names, strict=True)
        ]

    return reduce
