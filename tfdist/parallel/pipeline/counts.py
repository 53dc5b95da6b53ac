"""Divisors of losses over a whole batch, known before its first micro-batch is computed.

A loss with a mask or weights is divided by what the whole batch has of them, while the first gradient is taken before
the last micro-batch is computed. These divisors depend only on targets, weights, and the mask of the results, which
follows from the input. So the last stage computes them first.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer as keras_model
from tfdist.compat.keras.symbolic import graphs
from tfdist.errors import UnsupportedError
from tfdist.parallel.pipeline.division import Division
from tfdist.parallel.pipeline.flow import Flow
from tfdist.training.replica import current_step

#: sums over the whole batch, in the order in which they are asked for
Sums = list[tuple[str, list[tf.Tensor]]]


class Counting(current_step.Step):
    """A step in which losses are asked what they divide by, and nothing else is computed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sums: Sums = []

    def sum_in_the_middle(self, tensors: list[Any], *, what: str) -> list[Any]:
        sums = super().sum_in_the_middle(tensors, what=what)
        self.sums.append((what, sums))
        return sums

    def has_row_of_each(self, values: tf.Tensor) -> bool:
        return bool(values.shape.rank) and values.shape[0] == max(1, tf.get_static_value(self.rows))


def divisors(
    model: keras.Model, division: Division, data: Any, current: Counting, outputs: Sequence[tf.Tensor]
) -> Sums:
    """Return the sums over a batch by which the losses of a model divide."""
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with current, keras.StatelessScope():  # a metric of a loss counts nothing now
        keras_model.compiled_loss(model, y, graphs.packed(division.graph, list(outputs)), sample_weight)
    return current.sums


def with_masks(outputs: Sequence[tf.Tensor], flow: Flow, inputs: Sequence[Any]) -> list[tf.Tensor]:
    """Give tensors that stand for what a model returns the masks of that, and return them."""
    masks: dict[int | None, Any] = {None: None}
    for number in {*flow.masks} - {None}:
        assert number is not None
        if flow.needs_weights(number):
            raise UnsupportedError(
                f"a loss is masked, and its mask, made by {flow.values[number].maker}, depends on the model's weights. "
                "A loss over several micro-batches divides by what all of their masks let through, which must be known "
                "before the first one is computed. Let masks follow from the model's inputs alone (Masking, Embedding, "
                "a compute_mask that looks at inputs), or pass microbatches=1 to the strategy.",
                name=flow.values[number].maker,
            )
        masks[number] = flow.of_inputs(number, inputs)
    return [graphs.with_mask(one, masks[number]) for one, number in zip(outputs, flow.masks, strict=True)]
