"""Slots of optimizers over the replicas of a stage: each replica has and updates a part of its stage's weights.

Inside an update a weight has the part that this process holds: the whole on its stages, no element on others. The
replicas of a stage exchange as workers of sharded data parallelism do, in groups of their own. A slot in parts is read,
saved and restored whole.

Source: S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", 2020.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfdist.collectives.traced import TracedCollective
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras import sharded_optimizer
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.gradients.sharding.sharded_slots import UPDATES, OptimizerSharding, updates_of
from tfdist.gradients.sharding.sharded_updates import Updates
from tfdist.gradients.sharding.variable_parts import Everywhere
from tfdist.training.replica import partial_update


class StageSlots(OptimizerSharding):
    """The sharding of a pipeline's optimizers."""

    def __init__(self, workers: Workers, replicas: TracedCollective) -> None:
        super().__init__(1, workers, replicas)

    def adopt(self, optimizer: keras.optimizers.Optimizer) -> None:
        own = vars(optimizer)
        if UPDATES in own or keras_optimizer.hands_on(type(optimizer)):
            return
        own[UPDATES] = updates = StageUpdates(optimizer, self.traced)
        sharded_optimizer.let_update_stand_ins(optimizer, updates)

    @contextlib.contextmanager
    def updating(self, optimizer: keras.optimizers.Optimizer, variables: Any) -> Iterator[None]:
        if variables is not None:
            keras_optimizer.build(optimizer, list(variables))
        for updates in updates_of(optimizer):
            assert isinstance(updates, StageUpdates)
            updates.divide()
        with partial_update.updated(optimizer, variables, _lying):
            yield


class StageUpdates(Updates):
    """The updates of one optimizer by the replicas of a stage, inside of `shards.updated`."""

    def divide(self) -> None:
        """Note which part of each variable of the optimizer, which is built, this process updates."""
        for variable in keras_optimizer.known_variables(self._optimizer):
            key, lying = sharded_optimizer.key_of(self._optimizer, variable), _lying(variable)
            if key in self._parts:  # it has its part's shape now, maybe
                continue
            self._variables[key] = variable
            if lying is not None and lying.is_held:
                self._parts[key] = lying.stretch
            else:  # nothing, or what is whole on every process
                self._parts[key] = Everywhere(tuple(variable.shape) if lying is None else lying.local_shape)

    def assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        with self._apart():
            super().assign(variables, values)

    def swap_averages(self) -> None:
        with self._apart():
            super().swap_averages()

    def average_weights(self) -> None:
        with self._apart():
            super().average_weights()

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        self.divide()
        variables, averages = sharded_optimizer.averages(self._optimizer)
        with sharded_variable.local([*variables, *averages]):
            yield


def _lying(variable: Any) -> Any:
    """Return the layout in which a weight is updated; None: whole, on every process."""
    sharding = sharded_variable.sharding_of(variable)
    return None if sharding is None else sharding.of_slots
