"""Shapes of a graph in which the number of rows is unknown, and numbers that follow from them.

TensorFlow infers shapes as it makes operations, and loses a size that passes through several of these, such as the
number of features behind a product of sizes. It is recovered here.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

#: types of operations that are of each element by itself, and linear in none
ELEMENTWISE = {"Abs", "Acos", "Asin", "Atan", "Atan2", "Ceil", "Cos", "Cosh", "Digamma"}
ELEMENTWISE |= {"Elu", "Equal", "Erf", "Erfc", "Exp", "Expm1", "Floor", "FloorMod", "Greater", "GreaterEqual"}
ELEMENTWISE |= {"IsFinite", "IsInf", "IsNan", "LeakyRelu", "Less", "LessEqual", "Lgamma", "Log", "Log1p"}
ELEMENTWISE |= {"LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "NotEqual", "Pow", "Reciprocal"}
ELEMENTWISE |= {"Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus"}
ELEMENTWISE |= {"Softsign", "Sqrt", "Square", "SquaredDifference", "Tan", "Tanh", "Xlogy", "Xlog1py", "Xdivy"}
ELEMENTWISE |= {"ClipByValue"}
#: types of operations whose second output has the shape of the first input
OF_CLASSES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
_BROADCAST = {*ELEMENTWISE, "AddV2", "Add", "AddN", "Sub", "BiasAdd", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan"}
_BROADCAST |= {"FloorDiv", "Select", "SelectV2", "Identity", "StopGradient", "PreventGradient", "Neg", "Cast"}


def has_row_of_each(shape: tf.TensorShape) -> bool:
    """True if the first size of a shape, that of the rows, is the only unknown one."""
    return bool(shape.rank) and shape[0] is None and shape[1:].is_fully_defined()


def value_of(tensor: Any) -> Any:
    """Return the value of a tensor that follows from constants and shapes, with None for unknown elements; or None."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return value
    op = tensor.op
    if op.type == "Shape":
        return None if op.inputs[0].shape.rank is None else np.array(op.inputs[0].shape.as_list(), object)
    compute = functools.partial(_sliced, op) if op.type == "StridedSlice" else _ARITHMETIC.get(op.type)
    if compute is None:
        return None
    given = [value_of(one) for one in op.inputs]
    if op.type != "Pack" and any(one is None for one in given):
        return None
    try:
        return compute(*given)
    except TypeError:  # with a number of rows
        return None


def _sliced(op: Any, values: Any, begin: Any, end: Any, strides: Any) -> Any:
    if np.ndim(values) != 1 or len(begin) != 1 or op.get_attr("new_axis_mask") or op.get_attr("ellipsis_mask"):
        return None
    if op.get_attr("shrink_axis_mask"):
        return values[begin[0]]
    first, last = (None if op.get_attr(name) else one[0] for name, one in (("begin_mask", begin), ("end_mask", end)))
    return values[first : last : strides[0]]


def _stitched(*given: Any) -> Any:
    half = len(given) // 2
    found = np.full(1 + max(int(np.max(one)) for one in given[:half]), None, object)
    for places, values in zip(given[:half], given[half:], strict=True):
        found[places] = values
    return found


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "FloorMod": np.mod,
    "AddV2": np.add,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Range": np.arange,
    "Identity": np.asarray,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Cast": np.asarray,
    "Fill": np.full,
    "Size": np.size,
    "DynamicStitch": _stitched,
    "Prod": lambda values, axes: np.prod(values),
    "InvertPermutation": np.argsort,
    "GatherV2": lambda values, places, axis: np.take(values, places),
    "Pack": lambda *values: np.array(values, object),
    "ConcatV2": lambda *values: np.concatenate([np.ravel(one) for one in values[:-1]]),
}


def refine(op: Any) -> None:
    """Set the shapes of an operation's outputs if TensorFlow does not follow all numbers in them."""
    for output in op.outputs:
        if output.shape.rank is not None and not output.shape[1:].is_fully_defined():
            dimensions = _dimensions(op, output)
            if dimensions is not None:
                output.set_shape(dimensions)


def _dimensions(op: Any, output: Any) -> list[int | None] | None:
    if op.type == "Reshape":
        told = value_of(op.inputs[1])
        return None if told is None else [None if one is None or int(one) < 0 else int(one) for one in np.ravel(told)]
    if op.type in OF_CLASSES and output is not op.outputs[0]:
        return list(op.inputs[0].shape)
    if op.type not in _BROADCAST or any(one.shape.rank is None for one in op.inputs):
        return None
    shapes = [[1] * (output.shape.rank - one.shape.rank) + list(one.shape) for one in op.inputs]
    return [_broadcast(sizes) for sizes in zip(*shapes, strict=True)]


def _broadcast(sizes: Sequence[int | None]) -> int | None:
    large = [one for one in sizes if one is not None and one > 1]
    return large[0] if large else None if None in sizes else 1
