"""Repetition of a few operations of a traced function in another function, on other values.

Private names, read in TensorFlow 2.21.0: only a node's attribute `_class`, which names another node that the other
function may not have.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Replay:
    """The part of a traced function that computes some tensors, to be repeated elsewhere.

    Attributes:
        depends: for each output, whether it depends on the sources.
        given: the other tensors on which outputs depend, whose values must be passed, too.
    """

    def __init__(self, outputs: Sequence[tf.Tensor], sources: Sequence[tf.Tensor]) -> None:
        self._outputs, self._sources = list(outputs), list(sources)
        first = {id(tensor) for tensor in sources}
        behind = _behind(sources)
        self.depends = [id(tensor) in first or tensor.op in behind for tensor in outputs]
        nodes: dict[Any, None] = {}
        others: dict[str, tf.Tensor] = {}
        pending = [tensor for tensor in outputs if id(tensor) not in first and tensor.op in behind]
        while pending:
            operation = pending.pop().op
            if operation in nodes:
                continue
            nodes[operation] = None
            for tensor in operation.inputs:
                if id(tensor) in first:
                    continue
                if tensor.op in behind:
                    pending.append(tensor)
                else:
                    others[tensor.name] = tensor
        self._constants = {name: tf.get_static_value(tensor) for name, tensor in others.items()}
        self.given = [tensor for name, tensor in others.items() if self._constants[name] is None]
        self._graph = tf.compat.v1.GraphDef()
        if nodes:
            self._graph.CopyFrom(outputs[0].graph.as_graph_def())  # copies the library of functions
            del self._graph.node[:]
        for operation in nodes:
            node = self._graph.node.add()
            node.CopyFrom(operation.node_def)
            node.attr.pop("_class", None)
            inputs = [name for name in node.input if not name.startswith("^")]
            del node.input[:]
            node.input.extend(inputs)

    def __call__(self, sources: Sequence[tf.Tensor], given: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Return the outputs for these values, in the function being traced; None for outputs without a source."""
        values = {
            tensor.name: value
            for tensor, value in [*zip(self._sources, sources, strict=True), *zip(self.given, given, strict=True)]
        }
        values |= {name: tf.constant(value) for name, value in self._constants.items() if value is not None}
        made = [t.name for t, depends in zip(self._outputs, self.depends, strict=True) if depends]
        wanted = [name for name in made if name not in values]
        inputs = {name for node in self._graph.node for name in map(_tensor_name, node.input)}
        found = (
            tf.graph_util.import_graph_def(
                self._graph,
                input_map={name: value for name, value in values.items() if name in inputs},
                return_elements=wanted,
                name="replay",
            )
            if wanted
            else []
        )
        values |= dict(zip(wanted, found, strict=True))
        return [values.get(t.name) if d else None for t, d in zip(self._outputs, self.depends, strict=True)]


def _tensor_name(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _behind(sources: Sequence[tf.Tensor]) -> set[Any]:
    """Return every operation that depends on one of these tensors."""
    found: set[Any] = set()
    pending = list(sources)
    while pending:
        for operation in pending.pop().consumers():
            if operation not in found:
                found.add(operation)
                pending.extend(operation.outputs)
    return found
