"""State of each replica or worker in a saved model, stored as one device has it.

A file written on any number of replicas loads on any other. The state's rule reduces the shards to a single one when
it is saved, and divides that when it is loaded.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState, resharded
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import ConfigError
from tfdist.training.strategy_mixin import KerasTraining

_LOSES = (
    "tfdist: %r was saved while each replica had %s of its own. A saved model keeps those of one worker of %d, and "
    "uses them for all after loading: the next update comes from fewer examples. To resume training use "
    "tfdist.callbacks.BackupAndRestore, which keeps what every worker has; or save when an accumulation is complete."
)


class SavedState:
    """The variables of an optimizer that differ between shards, for saved models."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, states: Sequence[ShardedState]) -> None:
        strategy = keras_optimizer.created_under(optimizer)
        self._workers = strategy.workers if isinstance(strategy, KerasTraining) else Workers()
        self._optimizer = optimizer
        self._states = {id(variable): state for state in states for variable in state.variables}

    def of_one_device(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return the state that Keras saves of the optimizer, reduced to a single shard."""
        lost = []
        for key, state, variable in self._in_shards():
            shards = [copy.numpy() for copy in _own_copies(state, variable)]
            saved[key] = _resharded(state, shards, index=0, count=1)
            if self._workers.count > 1:
                if any(np.any(shard) for shard in shards):
                    lost.append(state.name)
                if state.rule == "sum":  # as large as that of all workers
                    saved[key] = (saved[key] * self._workers.count).astype(saved[key].dtype)
        if lost and self._workers.is_chief:
            names = " and ".join(dict.fromkeys(lost))
            logging.getLogger("tfdist").warning(_LOSES, self._optimizer.name, names, self._workers.count)
        return saved

    def of_first_shard(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return a saved state, cut to the part of this process's first shard, for Keras to load."""
        for key, state, variable in self._in_shards():
            saved[key] = self._shards(state, variable, saved[key])[0]
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Assign every shard of this process its part of a saved state."""
        for key, state, variable in self._in_shards():
            copies = tf_strategies.copies(variable.value)
            shards = self._shards(state, variable, saved[key])
            for place, copy in enumerate(copies):
                copy.assign(tf.constant(shards[min(place, len(shards) - 1)], copy.dtype))

    def _in_shards(self) -> Iterator[tuple[str, ShardedState, keras.Variable]]:
        for place, variable in enumerate(self._optimizer.variables):
            if id(variable) in self._states:
                yield str(place), self._states[id(variable)], variable

    def _shards(self, state: ShardedState, variable: keras.Variable, saved: Any) -> list[Any]:
        own = len(_own_copies(state, variable))
        first, count = self._workers.index * own, self._workers.count * own
        return [_resharded(state, [np.asarray(saved)], index=first + place, count=count) for place in range(own)]


def _own_copies(state: ShardedState, variable: keras.Variable) -> list[Any]:
    copies = tf_strategies.copies(variable.value)
    return copies[:1] if state.axis == "worker" else copies


def _resharded(state: ShardedState, shards: Sequence[Any], *, index: int, count: int) -> Any:
    try:
        return resharded(state.rule, shards, index=index, count=count)
    except ConfigError as error:
        raise ConfigError(f"a saved model is of one device; {state.name}: {error}") from error
