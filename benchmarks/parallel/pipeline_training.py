"""The worker processes of this benchmark: the same transformer and texts, whole or in stages.

Each process computes on one processor, so one process has half the power of two.
"""

import resource
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.parallel.parallel_networks import bind, transformer
from tfdist.bench.workers.training_loops import Clock
from tfdist.strategies import PipelineStrategy

_RATE = 1e-2
_prepared: dict[str, Any] = {}


def prepare(schedule: str | None, stages: int, microbatches: int, steps: int, **shape: int) -> None:
    """Build the transformer and train it for some steps."""
    bind()
    _prepared["before"] = _peak_bytes()
    strategy: Any = tf.distribute.get_strategy()
    if schedule is not None:
        strategy = PipelineStrategy(stages=stages, microbatches=microbatches, schedule=schedule)
    with strategy.scope():
        keras.utils.set_random_seed(7)
        model = transformer(
            shape["width"], shape["blocks"], heads=shape["heads"], length=shape["length"], words=shape["words"]
        )
        model.compile(keras.optimizers.SGD(_RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    draw = np.random.default_rng(7)
    texts = draw.integers(shape["words"], size=(shape["batch_size"], shape["length"] + 1)).astype(np.int32)
    _prepared["model"] = model
    _prepared["batches"] = tf.data.Dataset.from_tensors((texts[:, :-1], texts[:, 1:])).repeat()
    measure(steps)


def measure(steps: int) -> float:
    """Return the seconds of the given number of steps."""
    clock = Clock()
    _prepared["model"].fit(_prepared["batches"], steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return clock.seconds


def grown_bytes() -> int:
    """Return the process's peak memory minus its memory before there was a model."""
    return _peak_bytes() - int(_prepared["before"])


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
