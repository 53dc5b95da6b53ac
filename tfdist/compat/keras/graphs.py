"""Graphs of layers: which operation of a Sequential or functional model takes what another one returns.

Private names, read in Keras 3.15.1 (`keras/src/ops/function.py`, `node.py`, `keras/src/models/sequential.py`):
`_nodes_by_depth` has the calls of operations of which a graph is made; `_keras_history` of a symbolic tensor, the call
that returns it; `_functional`, the graph of a Sequential model; `_standardize_inputs`, which brings what a
model is called with into the order and dtypes of its inputs.
"""

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.models.functional import Functional

__all__ = ["Call", "Functional", "calls", "given_values", "graph_of", "results", "successors"]


@dataclass(frozen=True)
class Call:
    """One call of an operation in a graph.

    Attributes:
        operation: a layer, or an operation of `keras.ops`.
        inputs: the calls whose results it takes, as places in the list; what the graph is given is none.
        arguments: returns the arguments of the call, of the values of symbolic tensors by their ids.
        results: ids of the symbolic tensors that it returns.
    """

    operation: Any
    inputs: tuple[int, ...]
    arguments: Callable[[dict[int, Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    results: tuple[int, ...]


def calls(graph: Functional) -> list[Call]:
    """Return the calls of a graph in an order in which each comes after those whose results it takes."""
    nodes = [node for _, level in sorted(graph._nodes_by_depth.items(), reverse=True) for node in level]
    inner = [node for node in nodes if not node.is_input]
    places = {id(node): place for place, node in enumerate(inner)}
    return [
        Call(
            operation=node.operation,
            inputs=tuple(sorted({places[id(one)] for one in node.parent_nodes if id(one) in places})),
            arguments=node.arguments.fill_in,
            results=tuple(id(tensor) for tensor in node.outputs),
        )
        for node in inner
    ]


def given_values(graph: Functional, inputs: Any) -> dict[int, Any]:
    """Return the values of a graph's symbolic inputs by their ids, of what the model is called with."""
    return {id(tensor): value for tensor, value in zip(graph.inputs, graph._standardize_inputs(inputs), strict=True)}


def graph_of(model: keras.layers.Layer) -> Functional | None:
    """Return the graph by which a layer computes, or None where it is no model or has a way of its own."""
    graph = vars(model).get("_functional") if isinstance(model, keras.Sequential) else model
    return graph if isinstance(graph, Functional) else None


def results(graph: Functional) -> list[Any]:
    """Return the operations that return what the graph returns."""
    return [tensor._keras_history.operation for tensor in graph.outputs]


def successors(graph: Functional) -> list[tuple[Any, Any]]:
    """Return the operations whose result goes to one other operation and nowhere else, each with that other.

    Both are called once in the graph.
    """
    nodes = [node for level in graph._nodes_by_depth.values() for node in level]
    calls = collections.Counter(id(node.operation) for node in nodes)
    takers: dict[int, list[Any]] = collections.defaultdict(list)
    for node in nodes:
        for parent in node.parent_nodes:
            takers[id(parent.operation)].append(node.operation)
    for tensor in graph.outputs:
        takers[id(tensor._keras_history.operation)].append(None)
    found = [(node.operation, takers[id(node.operation)]) for node in nodes if calls[id(node.operation)] == 1]
    return [
        (operation, taking[0])
        for operation, taking in found
        if len(taking) == 1 and taking[0] is not None and calls[id(taking[0])] == 1
    ]
