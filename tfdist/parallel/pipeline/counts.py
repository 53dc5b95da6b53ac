"""What losses divide by, over a whole batch, before its first micro-batch is computed.

A loss with a mask, or one that divides by its weights, is a sum divided by what the whole batch has: valid entries,
weights. In a pipeline the first micro-batch's gradient is taken before the last one is computed. But what a loss
divides by depends on the targets, their weights and the mask of the model's results alone; the mask follows from the
input, layer by layer, without the layers' weights. So the last stage finds it first, for the batch as a whole.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import graphs
from tfdist.compat.keras import model as keras_model
from tfdist.errors import UnsupportedError
from tfdist.parallel.pipeline.division import Division
from tfdist.training.replica import step

#: sums over the whole batch, in the order in which they are asked for
Sums = list[tuple[str, list[tf.Tensor]]]


class Counting(step.Step):
    """A step in which losses are asked what they divide by, and nothing else is computed.

    Args:
        options: of `step.Step`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sums: Sums = []

    def sum_in_the_middle(self, tensors: list[Any], *, what: str) -> list[Any]:
        """Note and return the sums over replicas."""
        sums = super().sum_in_the_middle(tensors, what=what)
        self.sums.append((what, sums))
        return sums

    def has_row_of_each(self, values: tf.Tensor) -> bool:
        """Return whether values have a row for each example."""
        return bool(values.shape.rank) and values.shape[0] == max(1, tf.get_static_value(self.rows))


def divisors(
    model: keras.Model, division: Division, data: Any, current: Counting, outputs: Sequence[tf.TensorSpec]
) -> Sums:
    """Return the sums over a batch by which the losses of a model divide.

    Args:
        model: the model.
        division: of it.
        data: this replica's batch.
        current: the step.
        outputs: shapes and dtypes of what the model returns for the batch, flat.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    masks = masks_of_outputs(division, graphs.standardized(division.graph, x))
    made = [
        zeros if mask is None else graphs.with_mask(zeros, mask)
        for zeros, mask in zip([tf.zeros(one.shape, one.dtype) for one in outputs], masks, strict=True)
    ]
    with current, keras.StatelessScope():  # a metric of a loss counts nothing now
        keras_model.compiled_loss(model, y, graphs.packed(division.graph, made), sample_weight)
    return current.sums


def masks_of_outputs(division: Division, inputs: Sequence[Any]) -> list[Any]:
    """Return the masks of what a model returns, or None for each, given what its graph takes.

    A mask goes through layers by their `compute_mask`. What a layer is given is known where that is an input of the
    model, as it is for the layers of Keras that make masks, in general.

    Raises:
        UnsupportedError: a mask depends on what layers compute.
    """
    graph = division.graph
    symbolic = {id(tensor): tensor for call in division.calls for tensor in (*call.takes, *call.makes)}
    if all(graphs.mask_of(symbolic.get(id(tensor))) is None for tensor in graph.outputs):
        return [None] * len(graph.outputs)
    values: dict[int, Any] = {id(key): value for key, value in zip(graph.inputs, inputs, strict=True)}
    masks = {key: graphs.mask_of(value) for key, value in values.items()}
    for call in division.calls:
        has_mask = any(graphs.mask_of(tensor) is not None for tensor in call.makes)
        found = _through(call, values, masks) if has_mask else [None] * len(call.makes)
        for tensor, mask in zip(call.makes, found, strict=True):
            values[id(tensor)], masks[id(tensor)] = tensor, mask
    return [masks[id(tensor)] for tensor in graph.outputs]


def _through(call: graphs.Call, values: dict[int, Any], masks: dict[int, Any]) -> list[Any]:
    """Return the masks of what a layer returns."""
    layer = call.operation
    is_plain = type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.Model)
    if is_plain or type(layer).compute_mask is not keras.layers.Layer.compute_mask:
        (given, *_), _ = call.arguments(values)
        (before, *_), _ = call.arguments(masks)
        try:
            found = keras.tree.flatten(layer.compute_mask(given, before))
        except Exception as error:
            raise _unknown(layer) from error
        if len(found) == len(call.makes) and not any(isinstance(one, keras.KerasTensor) for one in found):
            return [None if one is None else tf.convert_to_tensor(one) for one in found]
    raise _unknown(layer)


def _unknown(layer: Any) -> UnsupportedError:
    return UnsupportedError(
        f"a loss is masked, and the mask that the layer {layer.name!r} ({type(layer).__name__}) hands on is not known "
        "before the layer computes, which a loss over several micro-batches needs. Let masks come from the model's "
        "inputs (Masking, Embedding), give a layer of your own a compute_mask(inputs, mask) that does not look at what "
        "it is given, or pass microbatches=1 to the strategy."
    )
