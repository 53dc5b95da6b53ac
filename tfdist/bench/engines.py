"""What the worker processes of an all-reduce benchmark run: one engine each, on tensors whose sum is known.

- ``tensorflow``: TensorFlow's MultiWorkerMirroredStrategy as it is, all tensors of a call in one pack;
- ``horovod``: an `allreduce` of Horovod for each tensor, as its users write it;
- ``multi-worker`` and ``ring``: tfdist's strategies, one `all_reduce` of a list of tensors in a replica.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist.bench import strategies
from tfdist.bench.models import MODELS

_LARGEST = 125

# engine -> one all-reduce of what was prepared last; what was prepared before is let go of
_prepared: dict[str, Callable[[], list[tf.Tensor]]] = {}


def start(engine: str) -> None:
    """Bring the workers of an engine together.

    Raises:
        MissingDependencyError: the engine is not installed.
    """
    strategies.horovod() if engine == "horovod" else _strategy_of(engine)


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
    _prepared[engine] = _horovod(tensors) if engine == "horovod" else _through_strategy(_strategy_of(engine), tensors)
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


def values(count: int, *, tensor: int, worker: int) -> np.ndarray:
    """Return float32 integers that depend on position, tensor and worker, and whose sums are exact.

    Example:
        >>> values(3, tensor=0, worker=0).tolist() != values(3, tensor=0, worker=1).tolist()
        True
    """
    mixed = np.arange(count, dtype=np.uint32)
    mixed += np.uint32(7919 * worker + 104_729 * tensor + 1)
    mixed *= np.uint32(2_654_435_761)
    mixed >>= np.uint32(16)
    mixed %= np.uint32(2 * _LARGEST + 1)
    return mixed.astype(np.float32) - _LARGEST


def _strategy_of(engine: str) -> tf.distribute.Strategy:
    return strategies.of_tensorflow("multi-worker") if engine == "tensorflow" else strategies.of_tfdist(engine)


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
