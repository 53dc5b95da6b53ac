"""Graphs of layers: which operation of a Sequential or functional model takes the result of another.

Private names, read in Keras 3.15.1 (`keras/src/ops/function.py`, `node.py`, `keras/src/models/functional.py`,
`sequential.py`): `_nodes_by_depth`, the calls of a graph; `_functional` of a Sequential model; `Function._inputs`,
`_outputs_struct`; `_standardize_inputs`; `operation_fn`, which passes on the context of a call; `Node.arguments` and
`fill_in`; the classes in `keras/src/ops/numpy.py`; `CallContext`, which says whether layers train.
"""

import collections
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.layers.layer import CallContext
from keras.src.models.functional import Functional as Functional
from keras.src.models.functional import operation_fn
from keras.src.ops import numpy as operations

#: the operations of `+`, `-`, `*` and `/` between symbolic tensors
ARITHMETIC = (
    *(operations.Add, operations.Subtract, operations.Multiply, operations.Divide, operations.TrueDivide),
    *(keras.layers.Add, keras.layers.Subtract, keras.layers.Multiply, keras.layers.Average),
)


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an operation in a graph of symbolic tensors; without a `node`, it is called with `takes` directly."""

    operation: Any
    takes: tuple[Any, ...]
    makes: tuple[Any, ...]
    node: Any
    name: str

    def arguments(self, values: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the operation, given the values of its tensors by their identity."""
        if self.node is None:
            return tuple(values[id(one)] for one in self.takes), {}
        # in a nested model, other tensors stand for those of the node
        own = {id(own): values.get(id(one)) for own, one in zip(self.node.input_tensors, self.takes, strict=True)}
        arguments, named = self.node.arguments.fill_in(own)
        return arguments, named

    def compute(self, values: Mapping[int, Any], *, training: bool) -> list[Any]:
        """Return the flat results of the operation."""
        return self.run(*self.arguments(values), training=training)

    def run(self, arguments: tuple[Any, ...], named: dict[str, Any], *, training: bool | None) -> list[Any]:
        """Return the flat results of the operation."""
        with tf.name_scope("layer"):  # a name such as that of a class `_Block` is valid only inside of another scope
            return list(keras.tree.flatten(operation_fn(self.operation, training=training)(*arguments, **named)))

    def infer(self, values: Mapping[int, Any]) -> list[Any]:
        """Return shapes and dtypes of what the operation returns, given those of what it takes."""
        arguments, named = self.arguments(values)
        return list(keras.tree.flatten(self.operation.compute_output_spec(*arguments, **named)))


def calls(graph: Functional) -> list[Call]:
    """Return the calls of a graph in the order in which Keras makes them, without those of its inputs."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    given = {id(tensor) for tensor in graph.inputs}
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth] if node.operation and not node.is_input]
    nodes = [node for node in nodes if not all(id(tensor) in given for tensor in node.outputs)]
    return [
        Call(one.operation, tuple(one.input_tensors), tuple(one.outputs), one, str(one.operation.name)) for one in nodes
    ]


def standardized(graph: Functional, inputs: Any) -> list[Any]:
    """Return the inputs of a graph, one for each of `graph.inputs`, from the arguments of a model's call."""
    return list(graph._standardize_inputs(inputs))


def packed(graph: Functional, outputs: list[Any]) -> Any:
    """Return the result of a model, given a value for each of `graph.outputs`."""
    structure = keras.tree.pack_sequence_as(graph._outputs_struct, outputs)
    is_single = isinstance(structure, (list, tuple)) and len(structure) == 1
    return structure[0] if is_single else structure


def mask_of(tensor: Any) -> Any:
    return get_keras_mask(tensor)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Let a mask go with a tensor, and return it."""
    set_keras_mask(tensor, mask)
    return tensor


@contextlib.contextmanager
def call_of_model(model: keras.Model, *, training: bool) -> Iterator[None]:
    """Let layers inside find themselves called by a model."""
    name = "current_call_ctx"
    before = global_state.get_global_attribute(name)
    own = CallContext(entry_layer=model)
    own.set_value("training", training)
    global_state.set_global_attribute(name, own)
    try:
        yield
    finally:
        global_state.set_global_attribute(name, before)


def graph_of(model: keras.layers.Layer) -> Functional | None:
    """Return the graph by which a layer computes, or None where it is no model or has a way of its own."""
    graph = vars(model).get("_functional") if isinstance(model, keras.Sequential) else model
    return graph if isinstance(graph, Functional) else None


def makers(calls: Sequence[Call], tensors: Sequence[Any]) -> list[Any]:
    """Return the operations that make the tensors."""
    made_by = {id(tensor): call.operation for call in calls for tensor in call.makes}
    return [made_by[id(tensor)] for tensor in tensors if id(tensor) in made_by]


def successors(calls: Sequence[Call], outputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of operations called once, where the result of the first goes to the second alone."""
    counts = collections.Counter(id(call.operation) for call in calls)
    takers: dict[int, list[Any]] = collections.defaultdict(list)
    for call in calls:
        for tensor in call.takes:
            takers[id(tensor)].append(call.operation)
    for tensor in outputs:
        takers[id(tensor)].append(None)
    taking = [(one.operation, [taker for made in one.makes for taker in takers[id(made)]]) for one in calls]
    return [
        (operation, found[0])
        for operation, found in taking
        if counts[id(operation)] == 1 and len(found) == 1 and found[0] is not None and counts[id(found[0])] == 1
    ]
