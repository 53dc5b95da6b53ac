"""The worker processes of this benchmark: costs between them, a profile, and steps of each arm."""

import time
from typing import Any

import keras
import tensorflow as tf

from benchmarks.parallel.parallel_networks import bind, planned
from tfdist import cluster as clusters
from tfdist.compression import PowerSGD
from tfdist.optimizers import DistributedOptimizer
from tfdist.parallel.partition.profile_model import profile, step_seconds
from tfdist.strategies import LocalSGD, MultiWorkerMirroredStrategy, ShardedDataParallelStrategy
from tfdist.tune import calibrating

__all__ = ["costs", "measured_profile", "prepare", "train"]

_strategies: dict[str, Any] = {}


def prepare(every: int) -> None:
    """Make the strategies before TensorFlow starts, with a processor for each worker."""
    bind()
    _strategies["data"] = _strategies["powersgd"] = MultiWorkerMirroredStrategy()
    _strategies["sharded"] = ShardedDataParallelStrategy()
    _strategies["local-sgd"] = MultiWorkerMirroredStrategy(synchronization=LocalSGD(every=every))


def costs() -> dict[str, float]:
    """Return the costs of this link."""
    return calibrating.costs_of(_strategies["data"].workers.collective)


def measured_profile(name: str, workers: int, seconds: float) -> str:
    """Return the profile of a model in this process, with tfdist's steps of a job of one worker."""
    keras.utils.clear_session()
    with MultiWorkerMirroredStrategy(clusters.Cluster()).scope():
        model, x, y = planned(name)
    found = profile(
        model,
        (x, y),
        batch_sizes=[len(x) // workers],
        in_fit=lambda batch, steps: step_seconds(model, batch, steps),
        seconds=seconds,
    )
    return found.to_json()


def train(name: str, arm: str, steps: int) -> float:
    """Return the mean seconds of a step, over the given number of steps after as many unmeasured ones."""
    keras.utils.clear_session()
    with _strategies[arm].scope():
        model, x, y = planned(name)
        if arm == "powersgd":
            optimizer = DistributedOptimizer(keras.optimizers.Adam(), compression=PowerSGD(rank=2))
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock = _Clock()
    batches = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.fit(batches, steps_per_epoch=steps, epochs=2, verbose=0, callbacks=[clock])
    return clock.seconds / steps


class _Clock(keras.callbacks.Callback):
    """The seconds of the second epoch, from the end of the first one's last step."""

    seconds = 0.0
    _began = 0.0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
