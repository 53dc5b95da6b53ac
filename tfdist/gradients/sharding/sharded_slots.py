"""Sharded data parallelism of one strategy: the optimizers that take part, and each worker's part of them.

Source: S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", 2020. There, all parameters in a row are partitioned; here each variable is, so that slots keep their names and
the parts do not depend on buckets.
"""

import contextlib
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import callback_fields, keras_trainer, sharded_optimizer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import norms, reducer
from tfdist.gradients.sharding import shard_exchange, slot_saving
from tfdist.gradients.sharding.sharded_updates import Updates, require_update_step_alone
from tfdist.gradients.sharding.variable_parts import Everywhere, Part

#: the attribute of an optimizer that has its `Updates`
UPDATES = "tfdist_updates"


class OptimizerSharding:
    """The sharding of a strategy's optimizers."""

    def __init__(self, stage: int, workers: Workers, traced: TracedCollective) -> None:
        self.stage = stage
        self.workers = workers
        self.traced = traced
        self._gathered: dict[int, Any] = {}

    def adopt(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Give slots for parts to an optimizer created in the strategy's scope; a second call does nothing."""
        own = vars(optimizer)
        if "save_own_variables" in own:
            return
        own["save_own_variables"] = functools.partial(slot_saving.save, optimizer, self.gathered, self._gathered)
        own["load_own_variables"] = functools.partial(slot_saving.load, optimizer)
        if keras_optimizer.hands_on(type(optimizer)):
            require_update_step_alone(optimizer)
            if hasattr(optimizer, "check_finite"):
                own["check_finite"] = lambda grads: norms.are_finite(grads, self.total)
            return
        updates = Updates(optimizer, self.traced, self.workers)
        sharded_optimizer.let_update_parts(optimizer, updates)
        own[UPDATES] = updates
        own["sharded_state"] = updates.sharded_state

    def accumulates_parts(self, choices: reducer.Choices) -> bool:
        """Return whether accumulated gradients are this worker's parts, reduced for each micro-batch."""
        if self.stage > 1 and (choices.compression is not None or choices.kind == "adasum"):
            what = "compression" if choices.compression is not None else 'reduction="adasum"'
            raise UnsupportedError(
                f"accumulate_steps and {what} are given together, which needs whole accumulated gradients on every "
                f"worker; stage {self.stage} of sharding keeps only parts of them. Use stage=1.",
                name="accumulate_steps",
                received=what,
            )
        return self.stage > 1

    def updating(self, optimizer: keras.optimizers.Optimizer, variables: Any) -> AbstractContextManager[None]:
        del optimizer, variables
        return contextlib.nullcontext()

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        return self.traced.all_reduce([vector], ["numbers of all gradients"])[0]

    def reduced(
        self,
        optimizer: Any,
        gradients: list[reducer.Gradient],
        variables: Sequence[Any],
        over_replicas: reducer.OverReplicas,
    ) -> list[reducer.Gradient]:
        """Return this worker's parts of the gradients of the global batch, given the chain for whole gradients."""
        parts, choices = parts_of(optimizer, variables), reducer.choices_of(optimizer)
        return shard_exchange.reduced(self.traced, gradients, parts, over_replicas, choices)

    def gathered(self, optimizers: Sequence[Any]) -> AbstractContextManager[None]:
        return slot_saving.gathered(self.workers, optimizers, self._gathered)


def of(optimizer: Any) -> OptimizerSharding | None:
    """Return the sharding of the strategy in whose scope an optimizer was created; None without one."""
    return of_strategy(keras_optimizer.created_under(optimizer))


def of_strategy(strategy: Any) -> OptimizerSharding | None:
    """Return the sharding of a strategy's optimizers; None without one."""
    found = services(strategy).sharding
    return found if isinstance(found, OptimizerSharding) else None


def parts_of(optimizer: Any, variables: Sequence[Any]) -> list[Part]:
    """Return this worker's parts of variables of an optimizer that is built, or passes gradients on to one that is."""
    known = updates_of(optimizer)
    found = [next(filter(None, (one.part_of(variable) for one in known)), None) for variable in variables]
    # Keras itself refuses an unknown variable
    return [part or Everywhere(tuple(one.shape)) for part, one in zip(found, variables, strict=True)]


def gathering(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context in which a model's optimizers are saved whole; every worker must enter it."""
    optimizers = [one for one in keras_trainer.optimizers(model) if of(one) is not None]
    sharding = of(optimizers[0]) if optimizers else None
    return contextlib.nullcontext() if sharding is None else sharding.gathered(optimizers)


def updates_of(optimizer: Any) -> list[Updates]:
    """Return the sharded updates of an optimizer, and of those to which it passes gradients on."""
    found = [vars(one).get(UPDATES) for one in keras_optimizer.chain(optimizer)]
    return [one for one in found if one is not None]


#: callbacks of which all workers take part in writing, because the slots are written too
SAVE_SLOTS = (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint)


def adapt_callbacks(callbacks: Sequence[keras.callbacks.Callback], *, writes: bool) -> None:
    """Let Keras' callbacks that use slots work together with those of the other workers."""
    for one in callbacks:
        if isinstance(one, keras.callbacks.SwapEMAWeights):
            callback_fields.let_swap(one, _swap, _settle)
        if isinstance(one, SAVE_SLOTS) and not writes:
            callback_fields.let_take_part(one)


def require_same_backup(found: Sequence[bool]) -> None:
    """Raise if some workers would resume from a backup made by Keras and others would not."""
    if any(found) and not all(found):
        raise UnsupportedError(
            f"keras.callbacks.BackupAndRestore finds a backup on worker {list(found).index(True)} and none on worker "
            f"{list(found).index(False)}; the optimizer is sharded, and each worker reads its part of the slots. Give "
            "all the same backup_dir, on a disk that they share, or use tfdist.callbacks.BackupAndRestore."
        )


def _swap(optimizer: Any) -> None:
    for updates in updates_of(optimizer):
        updates.swap_averages()


def _settle(optimizer: Any) -> None:
    for updates in updates_of(optimizer):
        updates.average_weights()
