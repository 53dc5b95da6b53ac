"""The worker processes of this benchmark: costs between them, and steps of each arm."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks.links.sleeping_network import sleeping
from benchmarks.parallel import parallel_networks
from tfdist import cluster as clusters
from tfdist.compression import PowerSGD
from tfdist.optimizers import DistributedOptimizer
from tfdist.parallel.partition.profile_model import profile, step_seconds
from tfdist.strategies import LocalSGD, MultiWorkerMirroredStrategy, PipelineStrategy, ShardedDataParallelStrategy
from tfdist.tune import calibrating

__all__ = ["alone_seconds", "costs", "measured_profile", "prepare", "train"]

_FEWEST, _MOST, _SECONDS = 4, 60, 0.5  # of steps without links
_strategies: dict[str, Any] = {}
_alone: list[Any] = []


def prepare(every: int) -> None:
    """Make the strategies, before TensorFlow starts."""
    _strategies["data"] = _strategies["powersgd"] = MultiWorkerMirroredStrategy()
    _strategies["sharded"] = ShardedDataParallelStrategy()
    _strategies["local-sgd"] = MultiWorkerMirroredStrategy(synchronization=LocalSGD(every=every))


def costs() -> dict[str, float]:
    return calibrating.costs_of(_strategies["data"].workers.collective)


def measured_profile(name: str, divisors: Sequence[int], seconds: float) -> str:
    """Return the profile of a model in this process, with tfdist's steps of a job of one worker."""
    keras.utils.clear_session()
    with MultiWorkerMirroredStrategy(clusters.Cluster()).scope():
        model, x, y = _planned(name)
    _alone[:] = [model, (x, y)]
    found = profile(
        model,
        (x, y),
        batch_sizes=[len(x) // one for one in divisors],
        in_fit=lambda batch, steps: step_seconds(model, batch, steps),
        seconds=seconds,
    )
    return found.to_json()


def alone_seconds() -> float:
    """Return the seconds of a step of the model that was profiled last, in this process without links."""
    model, batch = _alone
    once = step_seconds(model, batch, _FEWEST)
    return step_seconds(model, batch, min(max(round(_SECONDS / once), _FEWEST), _MOST))


def train(
    name: str, arm: str, steps: int, stages: Sequence[str] = (), microbatches: int = 1, mesh: str | None = None
) -> float:
    """Return the mean seconds of a step, over the given number of steps after as many unmeasured ones."""
    keras.utils.clear_session()
    if arm == "pipeline":
        _strategies[arm] = PipelineStrategy(stages=tuple(stages), microbatches=microbatches, mesh=mesh)
    with _strategies[arm].scope():
        model, x, y = _planned(name)
        if arm == "powersgd":
            optimizer = DistributedOptimizer(keras.optimizers.Adam(), compression=PowerSGD(rank=2))
            model.compile(optimizer, model.loss)
    clock = _Clock()
    batches = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.fit(batches, steps_per_epoch=steps, epochs=2, verbose=0, callbacks=[clock])
    return clock.seconds / steps


def _planned(name: str) -> tuple[keras.Model, Any, Any]:
    return sleeping() if name == "sleeping" else parallel_networks.planned(name)


class _Clock(keras.callbacks.Callback):
    """The seconds of the second epoch, from the end of the first one's last step."""

    seconds = 0.0
    _began = 0.0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
