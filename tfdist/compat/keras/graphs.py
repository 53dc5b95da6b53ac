"""Graphs of layers: which operation of a Sequential or functional model takes what another one returns.

Private names, read in Keras 3.15.1 (`keras/src/ops/function.py`, `node.py`, `keras/src/models/sequential.py`):
`_nodes_by_depth` has the calls of operations of which a graph is made; `_keras_history` of a symbolic tensor, the call
that returns it; `_functional`, the graph of a Sequential model.
"""

import collections
from typing import Any

import keras
from keras.src.models.functional import Functional

__all__ = ["Functional", "graph_of", "results", "successors"]


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
