"""Analysis of a step's graph, which finds whether the step does more with its gradients than add and scale them.

The gradient of a batch is the mean or sum of the gradients of its parts. The same holds for any linear function of it:
scaling, centring, decay, sums of micro-batches. It does not hold for a norm, a limit or a decision. Gradients with a
row per example belong to examples. If the trace leaves the number of examples unknown, their shape identifies them.

Private names, read in TensorFlow 2.21.0: the operation names of tapes (`_gradient_function` of `backprop.py`) and of
gradients of functions (`gradients_util.py`); `Graph._get_function`, `AtomicFunction.graph`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.tensorflow import sparse_rows

#: a part of the names of reduced gradients
REDUCED = "tfdist_reduced_gradient"
_OF_TAPE = re.compile(r"(^|/)gradient_tape/")
_OF_FUNCTION = re.compile(r"(^|/)gradients(_\d+)?/")

# operations that are linear in all their inputs together; sizes and indices are not floating-point
_LINEAR = {"AddN", "Add", "AddV2", "Sub", "Neg", "Identity", "IdentityN", "Cast", "ConcatV2", "Pack", "Unpack"}
_LINEAR |= {"Split", "SplitV", "Sum", "Mean", "Reshape", "ExpandDims", "Squeeze", "Transpose", "StopGradient"}
_LINEAR |= {"PreventGradient", "EnsureShape", "CheckNumerics", "CheckNumericsV2", "BroadcastTo", "Tile", "Pad"}
_LINEAR |= {"PadV2", "Slice", "StridedSlice", "GatherV2", "GatherNd", "Reverse", "ReverseV2", "Roll", "SegmentSum"}
_LINEAR |= {"UnsortedSegmentSum", "ScatterNd", "TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate"}
_LINEAR |= {"Cumsum", "BiasAdd", "MatrixDiagV3", "MatrixDiagPartV3", "Select", "SelectV2", "DynamicStitch", "Real"}
_LINEAR |= {"Imag", "Complex", "Conj"}
# operations that are linear if only one input depends on gradients
_PRODUCTS = {"Mul", "MulNoNan", "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv1D"}
_PRODUCTS |= {"Conv2D", "Conv3D"}
# operations that are linear in the first input if the second does not depend on gradients
_QUOTIENTS = {"RealDiv", "Div", "DivNoNan"}
#: operations that do not use the values of their inputs
OF_SHAPE = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
CONDITIONS = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}
_PASSES = 3  # passes over the body of a loop, until the states of its results are known


class _State(NamedTuple):
    """The relation of a tensor to the gradients of a batch.

    Attributes:
        is_gradient: whether the tensor depends linearly on gradients of a batch.
        use: the type of a nonlinear operation on such gradients on which the tensor depends, or None.
    """

    is_gradient: bool
    use: str | None


_NOTHING = _State(False, None)
_States = dict[Any, _State]


def reduced(gradient: Any, *, is_alone: bool = False) -> Any:
    """Mark a gradient in the graph as one of the global batch, and return it."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.identity(gradient, name=REDUCED)
    values = tf.identity(gradient.values, name=REDUCED)
    kind = sparse_rows.RowKind.COMMON
    indices = gradient.indices if is_alone else sparse_rows.marked(gradient.indices, kind)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def uses(values: Sequence[Any]) -> list[str | None]:
    """Return, for each value, the type of an operation on gradients of a batch that is not linear, or None."""
    tensors = [_tensors(value) for value in values]
    some = first(one for several in tensors for one in several)
    if some is None or not hasattr(some, "graph"):
        return [None] * len(values)
    states = _states_of(some.graph, {}, is_function=False)
    return [first(states.get(one.ref(), _NOTHING).use for one in several) for several in tensors]


def _tensors(value: Any) -> list[tf.Tensor]:
    flat = [one for one in tf.nest.flatten(value) if one is not None]
    return [one.values if isinstance(one, tf.IndexedSlices) else one for one in flat]


def first(found: Iterable[Any]) -> Any:
    return next((one for one in found if one is not None), None)


def _states_of(graph: Any, given: Mapping[Any, _State], *, is_function: bool) -> _States:
    states: _States = dict(given)
    for op in graph.get_operations():
        inputs = [states.get(one.ref(), _NOTHING) for one in op.inputs]
        is_of_tape = _OF_TAPE.search(op.name) or (is_function and _OF_FUNCTION.search(op.name))
        for output, state in zip(op.outputs, _outputs(op, inputs, is_of_tape=bool(is_of_tape)), strict=True):
            if output.ref() not in states:
                states[output.ref()] = state
    return states


def _outputs(op: Any, inputs: list[_State], *, is_of_tape: bool) -> list[_State]:
    use = first(state.use for state in inputs)
    if op.type == "Identity" and REDUCED in op.name:
        return [_State(False, use)]
    if is_of_tape:
        return [_State(output.dtype.is_floating, use) for output in op.outputs]
    if op.type in OF_SHAPE or not any(state.is_gradient or state.use for state in inputs):
        return [_NOTHING] * len(op.outputs)
    if op.type in _CALLS:
        return _called(op, op.get_attr("f"), inputs)
    if op.type in CONDITIONS and not inputs[0].is_gradient:
        names = ("then_branch", "else_branch") if op.type.endswith("If") else ("branches",)
        branches = [one for name in names for one in _listed(op.get_attr(name))]
        found = [_called(op, branch, inputs[1:]) for branch in branches]
        decided = [_State(False, inputs[0].use)] * len(op.outputs)
        return [_either(several) for several in zip(decided, *found, strict=True)]
    if op.type in LOOPS:
        return _looped(op, inputs)
    own = [number for number, state in enumerate(inputs) if state.is_gradient]
    if not own:
        return [_State(False, use)] * len(op.outputs)
    if _is_linear(op, own):
        return [_State(True, use)] * len(op.outputs)
    if not any(op.inputs[number].shape.is_fully_defined() for number in own):  # gradients with a row per example
        return [_State(output.dtype.is_floating, use) for output in op.outputs]
    return [_State(False, use or op.type)] * len(op.outputs)


def _is_linear(op: Any, own: list[int]) -> bool:
    """Return whether an operation is linear in those of its inputs that are gradients."""
    if op.type == "Cast":
        return bool(op.outputs[0].dtype.is_floating)
    if op.type in _PRODUCTS:
        return len(own) == 1
    if op.type in _QUOTIENTS:
        return own == [0]
    # operations of a backward pass, in a gradient that a user has defined, are linear in the gradient
    return op.type in _LINEAR or "Grad" in op.type or "Backprop" in op.type


def _listed(attr: Any) -> list[Any]:
    return list(attr) if isinstance(attr, (list, tuple)) else [attr]


def _either(several: Sequence[_State]) -> _State:
    return _State(any(state.is_gradient for state in several), first(state.use for state in several))


def _function(op: Any, attr: Any) -> Any:
    found = op.graph._get_function(attr.name)
    return None if found is None else found.graph


def _called(op: Any, attr: Any, inputs: Sequence[_State]) -> list[_State]:
    """Return the states of a function's results; a function without a graph counts as an unknown operation."""
    graph = _function(op, attr)
    if graph is None:
        return [_State(False, first(state.use for state in inputs) or op.type)] * len(op.outputs)
    given = {one.ref(): state for one, state in zip(graph.inputs, inputs, strict=False)}
    states = _states_of(graph, given, is_function=True)
    found = [states.get(one.ref(), _NOTHING) for one in graph.outputs]
    return [*found, *([_NOTHING] * len(op.outputs))][: len(op.outputs)]


def _looped(op: Any, inputs: list[_State]) -> list[_State]:
    """Return the states of a loop's results, which combine the states of its inputs and of its body's results."""
    for _ in range(_PASSES):
        inputs = [_either(pair) for pair in zip(inputs, _called(op, op.get_attr("body"), inputs), strict=True)]
    decision = _called(op, op.get_attr("cond"), inputs)[0].use
    return [_State(state.is_gradient, state.use or decision) for state in inputs]
