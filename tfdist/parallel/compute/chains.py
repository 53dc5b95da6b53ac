"""Activations that stay in parts between a layer by columns and the next one by rows, found in models' graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfdist.compat.keras.symbolic import graphs
from tfdist.parallel.compute import keep_sharded
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.compute.partial_layers import Way, way_of

# each element of the result is of one element, so a part of the result is of a part
_ELEMENTWISE = (
    *(keras.activations.linear, keras.activations.relu, keras.activations.relu6, keras.activations.leaky_relu),
    *(keras.activations.gelu, keras.activations.silu, keras.activations.mish, keras.activations.celu),
    *(keras.activations.tanh, keras.activations.sigmoid, keras.activations.hard_sigmoid, keras.activations.hard_silu),
    *(keras.activations.elu, keras.activations.selu, keras.activations.softplus, keras.activations.softsign),
    *(keras.activations.exponential,),
)
_ELEMENTWISE_LAYERS = (keras.layers.ReLU, keras.layers.LeakyReLU, keras.layers.ELU, keras.layers.Identity)


def found(model: Any) -> keep_sharded.Kept:
    """Find the activations that stay in parts in a built model; none if its graph is unknown."""
    graph = graphs.graph_of(model)
    return keep_sharded.Kept() if graph is None else among(graphs.calls(graph), graph.outputs)


def among(
    calls: Sequence[graphs.Call], outputs: Sequence[Any], together: Callable[[Any, Any], bool] = lambda one, other: True
) -> keep_sharded.Kept:
    """Find layers by columns and by rows of one axis with only elementwise layers between, which compute in parts."""
    pairs = graphs.successors(calls, outputs)
    follows = {id(one): (one, other) for one, other in pairs if together(one, other)}
    giving: list[Any] = []
    taking: list[Any] = []
    between: list[tuple[Any, Along, int]] = []
    for one, _ in follows.values():
        way = way_of(one)
        if way is None or not way.by_columns or not is_elementwise(one.activation) or _looks_at_result(one):
            continue
        passed, last = [], one
        while id(last) in follows and may_pass(follows[id(last)][1]):
            last = follows[id(last)][1]
            passed.append(last)
        _, taker = follows.get(id(last), (None, None))
        after = way_of(taker)
        if after is not None and _fits(way, after):
            giving.append(one)
            taking.append(taker)
            between += [(layer, way.along, way.dim) for layer in passed]
    results = tuple(graphs.makers(calls, outputs))
    return keep_sharded.Kept(giving=tuple(giving), taking=tuple(taking), last=results, between=tuple(between))


def _looks_at_result(layer: Any) -> bool:
    """Return whether a layer adds a function of its whole result to the loss."""
    return getattr(layer, "activity_regularizer", None) is not None


def is_elementwise(activation: Any) -> bool:
    """Return whether an activation function is known to be elementwise."""
    return activation is None or any(activation is known for known in _ELEMENTWISE)


def _fits(columns: Way, rows: Way) -> bool:
    same_rank = columns.rank is None or rows.rank is None or columns.rank == rows.rank
    return not rows.by_columns and columns.along.axis == rows.along.axis and columns.dim == rows.dim and same_rank


def may_pass(layer: Any) -> bool:
    """Return whether each element of a layer's result is known to depend on one element of the input."""
    if _looks_at_result(layer):
        return False
    if type(layer) is keras.layers.Dropout:
        return layer.noise_shape is None
    if type(layer) is keras.layers.Activation:
        return is_elementwise(layer.activation)
    return type(layer) in _ELEMENTWISE_LAYERS
