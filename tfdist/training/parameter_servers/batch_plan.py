"""The division of a batch among workers, and the findings of tracing its step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster.shares import Shares
from tfdist.training import keras_loop
from tfdist.training.epoch import Batch, Layout, flat
from tfdist.training.replica import batch_rows


@dataclass(frozen=True)
class Plan:
    """The computation of the batches of one layout.

    A worker changes no variable, so a step that uses what it has updated (a GAN's second pass) is run on stand-ins for
    those variables, which the worker updates too. An update needs the gradient of the whole batch: one part.

    Attributes:
        updates: the number of updates, from the first, that a worker does on stand-ins besides reporting them to the
            chief.
        weights: the Keras variables of these updates, which have stand-ins from the beginning of the step.
    """

    parts: int
    updates: float = 0
    weights: tuple[Any, ...] = field(default=(), hash=False, compare=False)

    @property
    def key(self) -> tuple[int, float]:
        return self.parts, self.updates


class OtherPlanError(Exception):
    """Raised if a step cannot be computed as planned; ``why`` is the reason for a warning, or empty."""

    why = ""

    def better(self, plan: Plan) -> Plan:
        return plan


class ReducesInTheMiddleError(OtherPlanError):
    """Raised if a step asks for a sum over parts before its gradients are known."""

    why = (
        "its loss or a layer (a loss function of one's own, weights, masks, synchronized BatchNormalization) needs "
        "sums over the whole batch in the middle of a step"
    )

    def better(self, plan: Plan) -> Plan:
        return Plan(1, plan.updates, plan.weights)


class UsesItsUpdatesError(OtherPlanError):
    """Raised if a step reads or assigns a variable that an optimizer has updated in the same step."""

    why = (
        "its train_step (a GAN's, say) or a layer (SpectralNormalization) uses or assigns weights that the same step "
        "updates, and an update needs the whole batch"
    )

    def __init__(self, weights: Sequence[Any], updates: float = math.inf) -> None:
        super().__init__(updates)
        self.weights = tuple(weights)
        self.updates = updates

    def better(self, plan: Plan) -> Plan:
        return Plan(1, self.updates, self.weights)


class NotBuiltError(OtherPlanError):
    """Raised if an optimizer has no variables yet; a function that runs on workers cannot make them."""

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        super().__init__(optimizer.name)
        self.optimizer = optimizer
        self.variables = list(variables)


class MakesVariablesError(OtherPlanError):
    """Raised if the first trace of a step makes Keras variables, as some metrics do; the next trace has them."""


def as_batch(element: Any, strategy: Any, parts: int) -> Batch:
    """Return a batch of the pipeline as it is, or a single one cut into parts."""
    if isinstance(element, Batch):
        return element
    data = keras_loop.batch_of(element, strategy)
    if parts > 1:
        batch_rows.require_alike(data)
    slices = tuple(batch_rows.parts_of(data, Shares.equal(parts).all))
    return Batch(flat(slices), batch_rows.rows_of(data), Layout.of(slices))


def present_parts(batch: Batch, parts: int) -> list[tuple[int, Any, list[Any]]]:
    """Return index, examples and tensors of each part with examples; for an empty batch, of the first part."""
    found = [(index, rows, leaves) for index, (rows, leaves) in enumerate(batch.layout.parts(batch.tensors))]
    present = [part for part in found if int(part[1])] or found[:1]
    if parts > 1 or len(present) == 1:
        return present
    leaves = [batch_rows.joined(*same) for same in zip(*(leaves for _, _, leaves in present), strict=True)]
    return [(0, batch.rows, leaves)]


def cut_into(batch: Batch, parts: int, *, can_be_cut: bool = True) -> list[tuple[int, Any, list[Any]]]:
    """Return index, examples and tensors of contiguous parts of a whole batch, or of all of it if it cannot be cut."""
    ((_, rows, leaves),) = present_parts(batch, 1)
    if not int(rows):
        return [(0, rows, leaves)]
    if parts > 1:
        for _, data in batch.layout.slices(batch.tensors):
            batch_rows.require_alike(data)
    cut = batch_rows.parts_of(leaves, Shares.equal(parts if can_be_cut else 1).all)
    return [(part, count, data) for part, (count, data) in enumerate(cut) if int(count)]
