"""Numbers of a whole batch that a step compares, limits or decides by, from the step's graph.

A trial on a few rows cannot see a decision that has the same result for all of them, such as an update that is left
out when the loss is large. One device decides by the mean over the batch, and a replica by that over its own rows.
The graph shows such an operation: it is given one number that follows from rows of the batch.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.tensorflow.steps.gradient_uses import CONDITIONS, LOOPS, OF_SHAPE, REDUCED, first

# operations that are linear in pieces: rows that lie in one piece show no difference
_IN_PIECES = {"Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "IsFinite", "IsNan", "IsInf"}
_IN_PIECES |= {"Abs", "Sign", "Maximum", "Minimum", "ClipByValue", "Relu", "Relu6", "Floor", "Ceil", "Round", "Rint"}
_OF_ALL = "tfdist_of_all_replicas"


class _State(NamedTuple):
    """Whether a tensor follows from rows of the batch, and the type of the decision that it depends on, or None."""

    is_of_rows: bool
    decision: str | None


_NOTHING = _State(False, None)


def of_all(nest: Any) -> Any:
    """Mark tensors of a graph as those of all replicas, on which every replica decides alike, and return them."""
    if tf.executing_eagerly():
        return nest
    return tf.nest.map_structure(lambda one: tf.identity(one, name=_OF_ALL), nest)


def of(values: Sequence[Any], rows: Iterable[Any]) -> list[str | None]:
    """Return, for each value, the type of an operation on one number of the given rows that it depends on, or None.

    Example:
        >>> @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        ... def step(x):
        ...     loss = tf.reduce_mean(x)
        ...     print(of([loss, tf.where(loss < 1.0, loss, 0.0), tf.reduce_mean(tf.abs(x))], [x]))
        >>> _ = step.get_concrete_function()
        [None, 'Less', None]
    """
    tensors = [[one for one in tf.nest.flatten(value, expand_composites=True) if one is not None] for value in values]
    graph = next((one.graph for several in tensors for one in several if hasattr(one, "graph")), None)
    if graph is None:
        return [None] * len(values)
    states = _states_of(graph, rows)
    return [first(states.get(one.ref(), _NOTHING).decision for one in several) for several in tensors]


def of_conditions(graph: Any, rows: Iterable[Any]) -> str | None:
    """Return the type of an operation on one number of the rows that a condition of a graph depends on, or None."""
    states = _states_of(graph, rows)
    conditions = [op for op in graph.get_operations() if op.type in CONDITIONS | LOOPS]
    return first(states.get(op.inputs[0].ref(), _NOTHING).decision for op in conditions)


def _states_of(graph: Any, rows: Iterable[Any]) -> dict[Any, _State]:
    states = {one.ref(): _State(True, None) for one in tf.nest.flatten(list(rows), expand_composites=True)}
    for op in graph.get_operations():  # in an order in which they can run
        inputs = [states.get(one.ref(), _NOTHING) for one in op.inputs]
        found = _state_after(op, inputs)
        if found != _NOTHING:
            for output in op.outputs:
                states.setdefault(output.ref(), found)
    return states


def _state_after(op: Any, inputs: Sequence[_State]) -> _State:
    if op.type in OF_SHAPE:
        return _NOTHING
    decision = first(one.decision for one in inputs)
    if op.type == "Identity" and (_OF_ALL in op.name or REDUCED in op.name):
        return _State(False, decision)
    numbers = [given for given, one in zip(op.inputs, inputs, strict=True) if one.is_of_rows]
    if decision is None and op.type in _IN_PIECES and any(_is_number(one) for one in numbers):
        decision = op.type
    return _State(bool(numbers), decision)


def _is_number(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating) and tensor.shape.rank == 0
