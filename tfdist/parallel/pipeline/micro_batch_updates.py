"""Updates after each micro-batch, without a flush, and the weights of each forward pass.

A stage updates its weights as soon as it has a micro-batch's gradient, while later ones are under way. Passes are given
values of weights, so a backward pass has the weights of its forward pass, at the cost of memory for each version in
use.

Sources: D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", 2019 (stashed weights);
C.-C. Chen, C.-L. Yang, H.-Y. Cheng, "Efficient and Robust Parallel DNN Training through Model Parallelism on Multi-GPU
Platform" (SpecTrain), 2018 (predicted weights).
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.errors import UnsupportedError
from tfdist.parallel.pipeline.division import Division
from tfdist.planner.schedules.schedule_table import Schedule, Work


class Updates:
    """The weights that a stage computes with, and their updates, pass after pass."""

    def __init__(self, model: keras.Model, schedule: Schedule, stage: int) -> None:
        self._optimizer = model.optimizer
        self._predicts = schedule.weights == "predicted"
        self._versions = schedule.versions(stage)

    def weights(self, work: Work, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        """Return the weights of a forward pass: the current ones, or predicted as w + s v.

        Here s is the number of missing updates and v the momentum, the update of a step. The prediction is exact if
        gradients stay constant.
        """
        missing = work.microbatch - self._versions[work]
        found = []
        for variable in variables:
            value = tf.identity(variable.value)
            if self._predicts and missing:
                value += missing * tf.cast(self._momentum(variable), value.dtype)
            found.append(value)
        return found

    def apply(self, gradients: Sequence[Any], variables: Sequence[keras.Variable]) -> None:
        """Update this stage's weights."""
        pairs = [(one, variable) for one, variable in zip(gradients, variables, strict=True) if one is not None]
        optimizer = self._optimizer
        if pairs:
            with sharded_variable.local([*keras_optimizer.known_variables(optimizer), *optimizer.variables]):
                optimizer.apply_gradients(pairs)
        else:  # all stages count alike
            optimizer.iterations.assign_add(1)

    def _momentum(self, variable: keras.Variable) -> tf.Tensor:
        slot = self._optimizer.momentums[keras_optimizer.index_of(self._optimizer, variable)]
        return slot.value if sharded_variable.sharding_of(slot) is None else sharded_variable.part_of(slot).value()


def require_possible(model: keras.Model, division: Division, schedule: Schedule, *, stages: int, replicas: int) -> None:
    """Raise unless each stage can update its weights by itself after each micro-batch."""
    optimizer, weights = model.optimizer, model.trainable_weights
    if replicas > 1:
        raise _refused(
            schedule,
            f"there are {replicas} replicas of each stage, which would reduce gradients in each pass",
            "Start one process for each stage",
            name="data",
        )
    if not keras_optimizer.takes_gradients_as_they_come(optimizer):
        raise _refused(
            schedule,
            f"the optimizer {type(optimizer).__name__} clips, scales or accumulates gradients, which is decided over "
            "all stages",
            "Leave that out",
            name=type(optimizer).__name__,
        )
    if schedule.weights == "predicted" and not (
        type(optimizer) is keras.optimizers.SGD and optimizer.momentum and not optimizer.nesterov
    ):
        raise _refused(
            schedule,
            f"weights are predicted by the momentum of SGD, and the optimizer is {type(optimizer).__name__} without it",
            "Take keras.optimizers.SGD(momentum=0.9), or the schedule 'pipedream'",
            name=type(optimizer).__name__,
        )
    holders = division.holders(stages)
    for weight in weights:
        if stages > 1 and (len(holders.get(id(weight), (0,))) > 1 or sharded_variable.sharding_of(weight) is None):
            raise _refused(
                schedule,
                f"the weight {weight.path!r} (shape {tuple(weight.shape)}) lies on several stages",
                "Let one stage call its layer (stages=), and give it a shape such as (1,)",
                name=weight.path,
            )
        if weight.constraint is not None:
            raise _refused(schedule, f"the weight {weight.path!r} has a constraint", "Leave it out", name=weight.path)


def _refused(schedule: Schedule, why: str, cure: str, *, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"the schedule {schedule.name!r} updates weights after each micro-batch, on each stage by itself, and {why}. "
        f"{cure}, or choose '1f1b', which updates once a batch.",
        name=name,
        received=schedule.name,
    )
