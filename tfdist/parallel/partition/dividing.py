"""Find layers that compute with parts of weights, and layers that continue with parts of activations."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.compat.keras.symbolic import graphs
from tfdist.parallel.compute import chains


def divides(layer: Any, calls: Sequence[graphs.Call]) -> int:
    """Return what a number of parts must divide for a layer to compute with a part; 0 if it never does."""
    if sum(call.operation is layer for call in calls) > 1:
        return 0
    kind = type(layer)
    if kind is keras.layers.Dense:
        return int(layer.units)
    if kind in (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D):
        return int(layer.filters) if layer.groups == 1 and layer.padding != "causal" else 0
    if kind is keras.layers.MultiHeadAttention:
        return int(layer.num_heads)
    return int(layer.input_dim) if kind is keras.layers.Embedding else 0


def joins(calls: Sequence[graphs.Call], place: int) -> bool:
    """Return whether a dense layer takes the result of the dense layer before it, which may stay in parts."""
    if not place:
        return False
    before, one = calls[place - 1].operation, calls[place].operation
    is_dense = type(before) is keras.layers.Dense and type(one) is keras.layers.Dense
    made = {id(tensor) for tensor in calls[place - 1].makes}
    takers = [number for number, call in enumerate(calls) if made.intersection(map(id, call.takes))]
    if not is_dense or takers != [place] or before.activity_regularizer is not None:
        return False
    return chains.is_elementwise(before.activation)
