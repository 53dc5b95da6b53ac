"""What the worker processes of a codec benchmark run: the same model, by Horovod's loop, or by `fit` with a codec."""

import dataclasses
from collections.abc import Sequence

import keras

from tfdist.bench.codecs.choice import HOROVOD, NOOP, codec_of, load
from tfdist.bench.workers import loops, strategies
from tfdist.optimizers import DistributedOptimizer
from tfdist.training.reduction import reducer

__all__ = ["measure", "optimizer", "prepare"]

# arm -> trains so many steps; a worker process keeps what it has built
_prepared: dict[str, loops.Runner] = {}


def prepare(arm: str, model: str, global_batch_size: int, steps: int, modules: Sequence[str]) -> None:
    """Build the model of an arm and run it for so many steps, which trace and warm it."""
    load(modules)
    if arm == HOROVOD:
        _prepared[arm] = loops.horovod(model, global_batch_size)
    else:
        strategy = strategies.of_tfdist("multi-worker")
        _prepared[arm] = loops.fit(strategy, model, global_batch_size, optimizer=lambda: optimizer(arm, 0.01))
    _prepared[arm](steps)


def measure(arm: str, steps: int) -> loops.Measured:
    """Return the seconds that this worker needs for so many steps, and the bytes that it has sent."""
    return _prepared[arm](steps)


def optimizer(arm: str, learning_rate: float, momentum: float = 0.0) -> keras.optimizers.Optimizer:
    """Return the optimizer of an arm: SGD, whose momentum is the codec's where that has one.

    Codecs compress from the first step on: what is measured is compression.
    """
    if arm == NOOP:
        return _Unreduced(keras.optimizers.SGD(learning_rate, momentum=momentum))
    codec = dataclasses.replace(codec_of(arm), start_after=0)
    inner = keras.optimizers.SGD(learning_rate, momentum=0.0 if codec.has_momentum else momentum)
    return DistributedOptimizer(inner, compression=codec)


class _Unreduced(DistributedOptimizer):
    """Updates with the gradients of this replica alone: what remains of a step when gradients cost nothing."""

    @property
    def reduction_choices(self) -> reducer.Choices:
        """A reducer that reduces nothing."""
        return reducer.Choices(compression=lambda inner: _AsTheyAre())


class _AsTheyAre(reducer.Stateless):
    def reduce(self, gradients: list[reducer.Gradient]) -> list[reducer.Gradient]:
        """Return them."""
        return gradients
