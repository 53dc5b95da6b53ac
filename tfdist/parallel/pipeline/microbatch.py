"""A micro-batch: some rows of a batch, and the step of Keras in which layers, losses and random numbers find them."""

from collections.abc import Callable, Collection
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow import sparse_rows
from tfdist.errors import UnsupportedError
from tfdist.parallel.pipeline.division import Division
from tfdist.parallel.pipeline.flow import Flow
from tfdist.parallel.pipeline.whole_batches import Sums
from tfdist.training.replica import batch_rows, current_step
from tfdist.training.replica.judging import Verdict


class MicroStep(current_step.Step):
    """The step of a micro-batch, whose rows are a part of the batch as a replica's are of the global batch."""

    def __init__(
        self,
        *,
        what: str,
        is_alone: bool,
        loss_reduction: str,
        known: Sums,
        comparing: Collection[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._comparing = comparing
        self._known = list(known)
        self._what, self._is_alone, self._loss_reduction = what, is_alone, loss_reduction

    def sum_in_the_middle(self, tensors: list[Any], *, what: str) -> list[Any]:
        """Return the sums over all micro-batches: of the losses' divisors, or where each replica has one."""
        if self._is_alone:
            return super().sum_in_the_middle(tensors, what=what)
        if self._known and self._known[0][0] == what:
            return self._known.pop(0)[1]
        raise needs_all(what)

    def require_others(self, what: str) -> None:
        if not self._is_alone:
            raise needs_all(what)
        super().require_others(what)

    def has_row_of_each(self, values: tf.Tensor) -> bool:
        return bool(values.shape.rank) and values.shape[0] == max(1, tf.get_static_value(self.rows))

    def rule_of(self, kind: str, value: Any, *, name: str = "", can_gather: bool = False) -> Verdict:
        told, is_loss = self._loss_reduction, kind in ("loss", "added")
        if is_loss and told == "detect" and not (self._is_alone and self.is_whole):
            what = "returns" if kind == "loss" else "(a layer) adds"
            raise UnsupportedError(
                f"the loss {name!r} of the model {self._what!r} {what} one number, which may be a mean or a sum over "
                "examples, and no stage of a pipeline can try it. Set strategy.loss_reduction = 'mean' or 'sum', or "
                "return a value for each example.",
                name=name,
                received=self._what,
            )
        if kind == "values" and self._is_alone and can_gather and name in self._comparing:
            return "whole"
        return "sum" if is_loss and told == "sum" else "mean"

    @property
    def is_whole(self) -> bool:
        """Whether the micro-batch is the whole batch of the step."""
        return bool(tf.get_static_value(self.rows) == tf.get_static_value(self.global_rows))


def needs_all(what: str) -> UnsupportedError:
    """Return an error that says that something needs micro-batches that have not been computed yet."""
    return UnsupportedError(
        f"{what} needs the whole batch in the middle of a step, and in a pipeline later micro-batches are not there "
        "yet. Pass microbatches=1 to the strategy, or use what examples have by themselves (LayerNormalization, "
        "GroupNormalization)."
    )


class MicroBatch:
    """One micro-batch of a replica.

    Attributes:
        share: the micro-batch's fraction of the examples of all replicas.
        weight: the weight of the micro-batch's loss in Keras' mean over batches.
    """

    def __init__(
        self,
        number: int,
        begin: int,
        end: int,
        *,
        data: Any,
        division: Division,
        begin_step: Callable[[int, tf.Tensor], MicroStep],
        index: int,
        global_rows: int,
        counts: bool,
        example_weight: float,
        flow_of: Callable[[list[Any]], Flow],
    ) -> None:
        self.number = number
        self.rows = end - begin
        self.counted = self.rows if counts else 0
        self.index = index
        self.share = self.counted / global_rows
        self.weight = self.counted * example_weight
        self._begin_step = begin_step
        x, self.y, self.sample_weight = keras.utils.unpack_x_y_sample_weight(
            batch_rows.plain(batch_rows.slice_rows(data, begin, end))
        )
        self.inputs = graphs.standardized(division.graph, x)
        self._common = [sparse_rows.hands_on_common(one) for one in self.inputs]
        self._require_dense(division)
        self.flow = flow_of(self.inputs)

    def marked(self, inputs: list[Any]) -> list[Any]:
        """Return the inputs, in a function that is given them, with marks on those that are whole."""
        kind = sparse_rows.RowKind.COMMON
        pairs = zip(inputs, self._common, strict=True)
        return [sparse_rows.marked(one, kind) if common else one for one, common in pairs]

    def step(self, index: tf.Tensor) -> MicroStep:
        """Return the step of this micro-batch, or of one with as many rows and another index."""
        return self._begin_step(self.counted, index)

    def _require_dense(self, division: Division) -> None:
        for tensor, given in zip(division.graph.inputs, self.inputs, strict=True):
            if given is not None and not isinstance(given, tf.Tensor):
                raise UnsupportedError(
                    f"the input {tensor.name!r} is a {type(given).__name__}; a pipeline cuts batches of dense tensors. "
                    "Convert it with tf.sparse.to_dense or .to_tensor()."
                )
