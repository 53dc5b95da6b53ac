"""The dependence of a state's new value on its former one, from the step's graph.

A trial on a few rows cannot see a branch that is taken later, such as a count that restarts at 1,000. The operations
between the former value and the new one show whether that is an addition, whatever the values are.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.training.replica.judging import Dependence

_PASS = {"Identity", "Cast", "Reshape", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape", "CheckNumerics"}
_PASS |= {"ExpandDims", "Squeeze", "ReadVariableOp"}
# takes these inputs by addition
_ADDS = {"AddV2": (0, 1), "Add": (0, 1), "Sub": (0,), "TensorScatterAdd": (0,), "TensorScatterSub": (0,)}
_SCALES = {"Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan", "Sub", "AddN", "Neg", "Sum", "Mean"}
_REPLACES = {"TensorScatterUpdate", "TensorStridedSliceUpdate", "StridedSliceAssign"}
_SELECTS = {"Maximum", "Minimum", "SelectV2", "Select", "TensorScatterMax", "TensorScatterMin"}
_SELECTS |= {"Less", "LessEqual", "Greater", "GreaterEqual"}


class Found(NamedTuple):
    """The dependence, and the factor of the former value in a scaled one, float64 of the state's shape."""

    dependence: Dependence
    kept: tf.Tensor | None = None


def of(value: tf.Tensor, former: tf.Tensor | None) -> Found:
    if former is None:
        return Found("none")
    if value is former:
        return Found("added")
    used = _between(former, value)
    if not used:
        return Found("none")
    types = {op.type for op, _ in used}
    if types & _SELECTS and types <= _SELECTS | _PASS:
        return Found("selected")
    if types & _REPLACES and types <= _REPLACES | _PASS:
        return Found("replaced")
    if all(_only_adds(op, places) for op, places in used):
        return Found("added")
    if all(_is_affine(op, places) for op, places in used) and has_fractions(value.dtype):
        return _scaled(value, former)
    return Found("other")


def _between(former: tf.Tensor, value: tf.Tensor) -> list[tuple[tf.Operation, list[int]]]:
    """Return the operations on paths from one tensor to another, each with its inputs on such a path."""
    after: set[Any] = {former.ref()}
    pending = [former]
    while pending:
        for op in pending.pop().consumers():
            fresh = [output for output in op.outputs if output.ref() not in after]
            after.update(output.ref() for output in fresh)
            pending.extend(fresh)
    if value.ref() not in after:
        return []
    found: dict[Any, list[int]] = {}
    towards = [value.op]
    while towards:
        op = towards.pop()
        places = [place for place, given in enumerate(op.inputs) if given.ref() in after]
        if op in found or op is former.op:
            continue
        found[op] = places
        towards.extend(op.inputs[place].op for place in places)
    return list(found.items())


def _only_adds(op: tf.Operation, places: list[int]) -> bool:
    return op.type in _PASS or (len(places) == 1 and places[0] in _ADDS.get(op.type, ()))


def _is_affine(op: tf.Operation, places: list[int]) -> bool:
    if op.type in ("Mul", "MulNoNan"):
        return len(places) == 1
    if op.type in ("RealDiv", "Div", "DivNoNan"):
        return places == [0]
    return op.type in _PASS or op.type in _ADDS or op.type in _SCALES


def _scaled(value: tf.Tensor, former: tf.Tensor) -> Found:
    """Return the factor of the former value, if it follows from constants alone."""
    (factor,) = tf.gradients(value, former, grad_ys=tf.ones(value.shape, value.dtype))
    if factor is None or not _is_constant(factor):
        return Found("other")
    return Found("scaled", tf.cast(tf.math.real(factor), tf.float64))


def _is_constant(tensor: tf.Tensor) -> bool:
    seen: set[Any] = set()
    pending = [tensor.op]
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type in ("Placeholder", "ReadVariableOp", "VarHandleOp") or (not op.inputs and op.type != "Const"):
            return False
        if op.type in ("Shape", "ZerosLike", "OnesLike", "Rank", "Size"):  # of something, whatever its value
            continue
        pending.extend(given.op for given in op.inputs)
    return True
