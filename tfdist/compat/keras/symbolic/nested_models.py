"""The flattening of nested models into one list of calls; Keras' graphs stay as they are.

Each call of a model gets symbolic tensors of its own in place of those of its graph.

Private names, read in Keras 3.15.1: `Function._inputs_struct`, the structure of a graph's input. A called functional
model converts its input and passes masks to its graph (`Functional.call`). It has no `compute_mask`, so its result gets
no mask from its input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfdist.compat.keras.symbolic import graphs


@dataclass(frozen=True, eq=False)
class Flat:
    """The calls by which a model computes, in Keras' order and named by paths, and the tensors that it returns."""

    calls: list[graphs.Call]
    outputs: list[Any]


class _Entrance(keras.Operation):
    """The operation that prepares the inputs of a nested model: their dtypes, ranks and masks."""

    def __init__(self, graph: graphs.Functional, has_mask: Sequence[bool]) -> None:
        super().__init__()
        self._graph = graph
        self._has_mask = has_mask

    def call(self, *tensors: Any) -> list[Any]:
        """Return tensors with the dtypes and ranks that the graph takes, and with their masks, given both."""
        inputs, named = tensors[: len(self._has_mask)], iter(tensors[len(self._has_mask) :])
        masks = [next(named) if has else graphs.mask_of(one) for one, has in zip(inputs, self._has_mask, strict=True)]
        taken = graphs.standardized(self._graph, keras.tree.pack_sequence_as(self._graph._inputs_struct, list(inputs)))
        return [one if mask is None else graphs.with_mask(one, mask) for one, mask in zip(taken, masks, strict=True)]


def flattened(graph: graphs.Functional) -> Flat:
    """Return the calls of a graph, nested models expanded; one with its own `call` or several inputs stays one call."""
    calls: list[graphs.Call] = []
    names = {id(tensor): tensor for tensor in graph.inputs}
    _add(calls, graph, names, "", is_nested=False)
    return Flat(calls, [names[id(tensor)] for tensor in graph.outputs])


def _add(
    calls: list[graphs.Call], graph: graphs.Functional, known: dict[int, Any], path: str, *, is_nested: bool
) -> None:
    for one in graphs.calls(graph):
        takes = tuple(known.get(id(tensor), tensor) for tensor in one.takes)
        name = path + str(one.operation.name)
        inner, given, masks = _entered(one)
        if inner is None:
            call = graphs.Call(one.operation, takes, one.makes, one.node, name)
            if is_nested:
                call = graphs.Call(one.operation, takes, _stand_ins(call), one.node, name)
            calls.append(call)
            known |= {id(tensor): made for tensor, made in zip(one.makes, call.makes, strict=True)}
            continue
        entering = [known.get(id(tensor), tensor) for tensor in given]
        named = [known.get(id(mask), mask) for mask in masks if mask is not None]
        if named or any(_differ(*pair) for pair in zip(entering, inner.inputs, strict=True)):
            entrance = _Entrance(inner, [mask is not None for mask in masks])
            made = tuple(keras.KerasTensor(tensor.shape, tensor.dtype) for tensor in inner.inputs)
            calls.append(graphs.Call(entrance, (*entering, *named), made, None, f"{name}/inputs"))
            entering = list(made)
        inside = {id(tensor): one for tensor, one in zip(inner.inputs, entering, strict=True)}
        _add(calls, inner, inside, f"{name}/", is_nested=True)
        known |= {id(tensor): inside[id(made)] for tensor, made in zip(one.makes, inner.outputs, strict=True)}


def _entered(call: graphs.Call) -> tuple[graphs.Functional | None, Sequence[Any], Sequence[Any]]:
    """Return the graph by which what is called computes, its inputs and their masks; no graph where it is a layer."""
    model, kinds = call.operation, (graphs.Functional, keras.Sequential)
    graph = graphs.graph_of(model) if isinstance(model, kinds) else None
    if graph is None or not any(isinstance(model, kind) and type(model).call is kind.call for kind in kinds):
        return None, (), ()
    does_more = type(model).__call__ is not keras.Model.__call__ or model.supports_masking or model.activity_regularizer
    arguments, named = call.node.arguments.args, call.node.arguments.kwargs
    given = keras.tree.flatten(arguments)
    is_plain = len(arguments) == 1 and all(isinstance(one, keras.KerasTensor) for one in given)
    is_plain = is_plain and all(one is None or name in ("mask", "training") for name, one in named.items())
    if does_more or not is_plain or not _has_structure(arguments[0], graph._inputs_struct):
        return None, (), ()
    masks = keras.tree.flatten(named.get("mask"))
    return graph, given, masks if len(masks) == len(given) else [None] * len(given)


def _has_structure(given: Any, wanted: Any) -> bool:
    if isinstance(given, keras.KerasTensor):
        return len(keras.tree.flatten(wanted)) == 1
    try:
        keras.tree.assert_same_structure(keras.tree.lists_to_tuples(given), keras.tree.lists_to_tuples(wanted))
    except (TypeError, ValueError):
        return False
    return True


def _differ(given: Any, wanted: Any) -> bool:
    return bool(given.dtype != wanted.dtype or len(given.shape) != len(wanted.shape))


def _stand_ins(call: graphs.Call) -> tuple[Any, ...]:
    """Return symbolic tensors for what a call in a nested model makes, with the shapes that it has there."""
    made: Sequence[Any] = call.makes
    if any(tuple(own.shape) != tuple(one.shape) for own, one in zip(call.node.input_tensors, call.takes, strict=True)):
        try:
            made = call.infer({id(tensor): tensor for tensor in call.takes})
        except Exception:  # noqa: BLE001 - what Keras inferred when the nested model was made is right, if less known
            made = call.makes
    return tuple(keras.KerasTensor(one.shape, one.dtype) for one in made)
