"""The effect of each operation on rows and on sums over rows: rules by which `row_sums` follows a graph.

A rule maps an operation and the knowledge of its inputs to the knowledge of its outputs, for all values that the inputs
may have. In doubt the answer is "anything"; the verdict is then found again at each start.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.training.checks.row_shapes import ELEMENTWISE, OF_CLASSES, has_row_of_each, value_of


class Kind(enum.Enum):
    FREE = "free of the rows: constants, variables, the number of rows"
    ZERO = "zeros"
    SHAPE = "a vector whose first element alone grows with the number of rows"
    SIZES = "numbers of elements and axes, good for shapes alone"
    ROWS = "one element of the first axis for each row, made of that row alone"
    TOTAL = "linear in a sum over rows"
    SUMMED = "rows, or a total of them: the shape that it is given tells"
    FREE_SUMMED = "the same of what is free of the rows"
    FORMER = "the value that a state had before, or a part of it"
    ANY = "anything"


class Known(NamedTuple):
    """The knowledge about a tensor.

    ``power`` is the power of the number of rows with which the tensor, or each of its rows, grows.
    """

    kind: Kind
    power: int = 0


ANY, FREE, ZERO, SIZES, FORMER = map(Known, (Kind.ANY, Kind.FREE, Kind.ZERO, Kind.SIZES, Kind.FORMER))
_SHAPE = Known(Kind.SHAPE)
_NEUTRAL = (Kind.ZERO, Kind.FORMER)
_OF_SIZES = (Kind.SHAPE, Kind.SIZES)

Rule = Callable[[Any, list[Known]], Known]


def _size_of(op: Any) -> Known:
    shape = op.inputs[0].shape
    if shape.is_fully_defined():
        return FREE
    return Known(Kind.FREE, 1) if has_row_of_each(shape) else SIZES


def _sizes(op: Any, given: list[Known]) -> Known:
    if given[0].kind is Kind.ANY:
        return ANY
    if op.type in ("ZerosLike", "OnesLike"):
        return ZERO if op.type == "ZerosLike" else FREE
    if op.type == "Size":
        return _size_of(op)
    if op.type == "Shape":
        shape = op.inputs[0].shape
        return FREE if shape.is_fully_defined() else _SHAPE if has_row_of_each(shape) else SIZES
    return FREE if op.type == "Rank" else SIZES


def _same(op: Any, given: list[Known]) -> Known:
    if op.type == "Cast" and given[0].kind is Kind.TOTAL and not op.outputs[0].dtype.is_floating:
        return given[0] if op.inputs[0].dtype.is_integer else ANY
    return given[0]


def _sum_of(op: Any, given: list[Known]) -> Known:
    if op.type == "Sub" and given[1].kind is Kind.FORMER:
        return ANY
    parts = [one for one in given if one.kind not in _NEUTRAL]
    if not parts:
        return FORMER if any(one.kind is Kind.FORMER for one in given) else ZERO
    return _alike(op, parts)


def _alike(op: Any, parts: list[Known]) -> Known:
    """Return the knowledge of a linear function of several tensors, which must grow alike."""
    kinds, powers = {one.kind for one in parts}, {one.power for one in parts}
    if len(powers) > 1 or not kinds <= {Kind.FREE, Kind.ROWS, Kind.TOTAL}:
        return ANY
    return Known(_widest(kinds), powers.pop()) if _fits(op, kinds) else ANY


def _product(op: Any, given: list[Known]) -> Known:
    one, other = given
    if Kind.ZERO in (one.kind, other.kind):
        return ZERO
    if Kind.FORMER in (one.kind, other.kind):
        return FORMER if FREE in given else ANY
    kinds = {one.kind, other.kind}
    is_square = one.kind is other.kind is Kind.TOTAL
    if is_square or not kinds <= {Kind.FREE, Kind.ROWS, Kind.TOTAL} or not _fits(op, kinds):
        return ANY
    return Known(_widest(kinds), one.power + other.power)


def _quotient(op: Any, given: list[Known]) -> Known:
    one, other = given
    if op.type == "FloorDiv" and {one.kind, other.kind} != {Kind.FREE}:
        return ANY
    if other.kind in (Kind.TOTAL, *_NEUTRAL):
        return ANY
    return _product(op, [one, Known(other.kind, -other.power)])


def _elementwise(op: Any, given: list[Known]) -> Known:
    kinds = _kinds(given)
    if op.type == "Maximum" and kinds == {Kind.FREE} and given[1].power == 0:  # max(rows, 1)
        return given[0]
    if any(one.power for one in given) or not kinds <= {Kind.FREE, Kind.ROWS} or not _fits(op, kinds):
        return ANY
    return Known(_widest(kinds))


def _selected(op: Any, given: list[Known]) -> Known:
    condition, *branches = given
    parts = [one for one in branches if one.kind is not Kind.ZERO]
    kinds = {condition.kind, *(one.kind for one in parts)}
    if condition.power or not kinds <= {Kind.FREE, Kind.ROWS} or len({one.power for one in parts}) > 1:
        return ANY
    return Known(_widest(kinds), parts[0].power if parts else 0) if _fits(op, kinds) else ANY


def _backward(number: int) -> Rule:
    """Return the rule of an operation that is linear in one input, a gradient, and per row in the others."""

    def rule(op: Any, given: list[Known]) -> Known:
        if given[number].kind is Kind.ZERO:
            return ZERO
        kinds = _kinds(given)
        others = [one for place, one in enumerate(given) if place != number]
        if any(one.power for one in others) or not kinds <= {Kind.FREE, Kind.ROWS} or not _fits(op, kinds):
            return ANY
        return Known(_widest(kinds), given[number].power)

    return rule


def _reduced(op: Any, given: list[Known]) -> Known:
    one, shape, axes = given[0], op.inputs[0].shape, value_of(op.inputs[1])
    adds = op.type in ("Sum", "Mean")
    if one.kind is Kind.SHAPE:  # the product of a shape grows as its first size does
        return Known(Kind.FREE, 1) if op.type == "Prod" and axes is not None else SIZES
    if one.kind is Kind.ZERO and adds:
        return ZERO
    if one.kind is Kind.TOTAL:
        return one if adds and shape.is_fully_defined() else ANY
    if one.kind not in (Kind.FREE, Kind.ROWS):
        return ANY
    if shape.is_fully_defined():
        return one if adds or not one.power else ANY
    if not has_row_of_each(shape):
        return ANY
    if axes is None:
        summed = Kind.SUMMED if one.kind is Kind.ROWS else Kind.FREE_SUMMED
        return Known(summed, one.power) if op.type == "Sum" else ANY
    if 0 not in {int(axis) % shape.rank for axis in np.ravel(axes)}:
        return one if adds or op.type in ("Max", "Min") or not one.power else ANY
    if not adds:
        return ANY
    return Known(Kind.TOTAL if one.kind is Kind.ROWS else Kind.FREE, one.power + (op.type == "Sum"))


def _matrices(op: Any, given: list[Known]) -> Known:
    one, other = given
    if Kind.ZERO in (one.kind, other.kind):
        return ZERO
    kinds, power = {one.kind, other.kind}, one.power + other.power
    left, right = (tensor.shape for tensor in op.inputs)
    if kinds in ({Kind.FREE}, {Kind.TOTAL, Kind.FREE}) and left.is_fully_defined() and right.is_fully_defined():
        return Known(_widest(kinds), power)
    if not kinds <= {Kind.FREE, Kind.ROWS} or not has_row_of_each(left):
        return ANY
    if op.get_attr("transpose_a"):  # summed over the rows of both
        is_total = has_row_of_each(right) and not op.get_attr("transpose_b")
        return Known(Kind.TOTAL if Kind.ROWS in kinds else Kind.FREE, power + 1) if is_total else ANY
    return Known(one.kind, power) if other.kind is Kind.FREE and right.is_fully_defined() else ANY


def _several_matrices(op: Any, given: list[Known]) -> Known:
    kinds = {one.kind for one in given}
    ranks = [tensor.shape.rank or 0 for tensor in op.inputs]
    rows = [rank for one, rank in zip(given, ranks, strict=True) if one.kind is Kind.ROWS]
    power = sum(one.power for one in given)
    if not kinds <= {Kind.FREE, Kind.ROWS}:
        return ANY
    if not rows:
        return Known(Kind.FREE, power) if all(tensor.shape.is_fully_defined() for tensor in op.inputs) else ANY
    is_each = min(rows) >= 3 and max(ranks) == min(rows) and has_row_of_each(op.outputs[0].shape)
    return Known(Kind.ROWS, power) if is_each else ANY


def _einsum(op: Any, given: list[Known]) -> Known:
    equation = op.get_attr("equation").decode().replace(" ", "")
    kinds, power = {one.kind for one in given}, sum(one.power for one in given)
    if "." in equation or not kinds <= {Kind.FREE, Kind.ROWS}:
        return ANY
    left, _, right = equation.partition("->")
    labels = [text[:1] for text, one in zip(left.split(","), given, strict=True) if one.kind is Kind.ROWS]
    if not labels:
        return Known(Kind.FREE, power) if all(tensor.shape.is_fully_defined() for tensor in op.inputs) else ANY
    if len(set(labels)) > 1 or any(labels[0] in text[1:] for text in left.split(",")):
        return ANY
    if right[:1] == labels[0]:
        return Known(Kind.ROWS, power) if has_row_of_each(op.outputs[0].shape) else ANY
    return Known(Kind.TOTAL, power + 1) if labels[0] not in right and op.outputs[0].shape.is_fully_defined() else ANY


def _laid_out(op: Any, given: list[Known]) -> Known:
    """Return the knowledge of a tensor that is reshaped, or from which elements are taken."""
    place = {"Split": 1, "StridedSliceGrad": 4}.get(op.type, 0)
    one, shape = given[place], op.outputs[0].shape
    if op.type == "Fill":
        one = given[1]
    if one.kind in _OF_SIZES:
        return _of_a_shape(op)
    if one.kind is Kind.SUMMED:
        if op.type != "Reshape":
            return ANY
        return Known(Kind.TOTAL, one.power + 1) if shape.is_fully_defined() else _rows_in(shape, one.power)
    if one.kind is Kind.FREE_SUMMED:
        is_one = op.type == "Reshape" and (shape.is_fully_defined() or has_row_of_each(shape))
        return Known(Kind.FREE, one.power + shape.is_fully_defined()) if is_one else ANY
    if one.kind in (Kind.FREE, Kind.FORMER, *_NEUTRAL):
        return one if op.type != "OneHot" or not one.power else ANY
    if one.kind is Kind.TOTAL:
        return one if shape.is_fully_defined() and op.type != "OneHot" else ANY
    if one.kind is not Kind.ROWS or not _keeps_rows(op, place):
        return ANY
    pads = given[-1] if op.type in ("PadV2", "OneHot") else ZERO
    return _rows_in(shape, one.power) if not one.power or pads.kind is Kind.ZERO else ANY


def _of_a_shape(op: Any) -> Known:
    if op.type == "Reshape" and op.outputs[0].shape.rank == 1:
        return _SHAPE
    begin = value_of(op.inputs[1]) if op.type == "StridedSlice" else None
    if begin is None or len(begin) != 1 or op.get_attr("new_axis_mask") or op.get_attr("ellipsis_mask"):
        return SIZES
    if int(begin[0]) < 0:
        length = op.inputs[0].shape[0]
        begin = [begin[0] + length] if length else [0]
    is_first = int(begin[0]) <= 0 or bool(op.get_attr("begin_mask"))
    if op.get_attr("shrink_axis_mask"):
        return Known(Kind.FREE, int(is_first))
    return _SHAPE if is_first else FREE


def _keeps_rows(op: Any, place: int) -> bool:
    """True if each row keeps its place on the first axis."""
    rank = op.inputs[place].shape.rank
    if op.type in ("Reshape", "ExpandDims", "Squeeze", "OneHot"):
        return True
    if op.type == "BroadcastTo":
        return rank == op.outputs[0].shape.rank
    if op.type in ("StridedSlice", "StridedSliceGrad"):
        masks = [op.get_attr(name) & 1 for name in ("begin_mask", "end_mask", "shrink_axis_mask", "new_axis_mask")]
        strides = value_of(op.inputs[3])
        is_whole = masks == [1, 1, 0, 0] and strides is not None and int(strides[0]) == 1
        return bool(op.get_attr("ellipsis_mask") & 1 or is_whole)
    if op.type in ("Split", "SplitV"):
        axis = value_of(op.inputs[0 if op.type == "Split" else 2])
        return axis is not None and int(axis) % rank != 0
    told = value_of(op.inputs[1])
    if told is None:
        return False
    if op.type == "Slice":
        sizes = value_of(op.inputs[2])
        return int(told[0]) == 0 and sizes is not None and int(sizes[0]) == -1
    if op.type == "Tile":
        return int(told[0]) == 1
    return not np.any(told[0])  # of paddings, and of a transposition


def _joined(op: Any, given: list[Known]) -> Known:
    parts = given[:-1] if op.type == "ConcatV2" else given
    axis = value_of(op.inputs[-1]) if op.type == "ConcatV2" else op.get_attr("axis")
    kinds = {one.kind for one in parts}
    if kinds & {Kind.SHAPE, Kind.SIZES} or (kinds == {Kind.FREE} and any(one.power for one in parts)):
        grows = [one.kind is Kind.SHAPE or one.power == 1 for one in parts]
        fits = grows[0] and not any(grows[1:]) and not any(one.kind is Kind.SIZES for one in parts)
        return _SHAPE if fits and op.outputs[0].shape.rank == 1 else SIZES
    if axis is None or (Kind.ROWS in kinds and int(axis) % op.outputs[0].shape.rank == 0):
        return ANY
    several = [one for one in parts if one.kind is not Kind.ZERO]
    return _alike(op, several) if several else ZERO


def _taken_apart(op: Any, given: list[Known]) -> Known:
    (one,) = given
    if one.kind is Kind.ROWS:
        is_kept = op.get_attr("axis") % op.inputs[0].shape.rank != 0
        return _rows_in(op.outputs[0].shape, one.power) if is_kept else ANY
    return one if one.kind in (Kind.FREE, Kind.ZERO, Kind.TOTAL) and op.inputs[0].shape.is_fully_defined() else ANY


def _looked_up(op: Any, given: list[Known]) -> Known:
    table, indices = given[0], given[1]
    shape = op.outputs[0].shape
    if op.type == "ResourceGather":
        fits = table.kind is Kind.FREE and indices == Known(Kind.ROWS)
        return _rows_in(shape, 0) if fits and not op.get_attr("batch_dims") else ANY
    axis = value_of(op.inputs[2])
    if axis is None or indices.power or op.get_attr("batch_dims"):
        return ANY
    if table.kind is Kind.SHAPE:
        places = value_of(op.inputs[1])
        if places is None:
            return SIZES
        first = [int(place) == 0 for place in np.ravel(places)]
        if not any(first):
            return FREE
        return Known(Kind.FREE, 1) if np.ndim(places) == 0 else _SHAPE if first[0] and sum(first) == 1 else SIZES
    if table.kind is Kind.FREE and indices.kind is Kind.ROWS and axis == 0:
        return _rows_in(shape, table.power)
    if table.kind is Kind.ROWS and indices.kind is Kind.FREE and int(axis) % op.inputs[0].shape.rank != 0:
        return _rows_in(shape, table.power)
    return table if {table.kind, indices.kind} == {Kind.FREE} else ANY


def _of_rows(*places: int, is_total: bool = False) -> Rule:
    """Return the rule of an operation that is linear in some inputs, whose rows meet row by row."""

    def rule(op: Any, given: list[Known]) -> Known:
        parts = [given[place] for place in places]
        kinds, power = {one.kind for one in parts}, sum(one.power for one in parts)
        if Kind.ZERO in kinds:
            return ZERO
        if not kinds <= {Kind.FREE, Kind.ROWS} or Kind.ROWS not in kinds:
            return ANY
        if is_total:
            return Known(Kind.TOTAL, power + 1) if kinds == {Kind.ROWS} else ANY
        return _rows_in(op.outputs[0].shape, power)

    return rule


def _of_last_axis(op: Any, given: list[Known]) -> Known:
    if all(one.kind is Kind.FREE and not one.power for one in given):
        return FREE
    is_each = (op.inputs[0].shape.rank or 0) > 1 and all(not one.power for one in given)
    return _rows_in(op.inputs[0].shape, 0) if is_each and given[0].kind is Kind.ROWS else ANY


def drawn(op: Any) -> Known:
    shape = op.outputs[0].shape
    return FREE if shape.is_fully_defined() else _rows_in(shape, 0)


def _rows_in(shape: tf.TensorShape, power: int) -> Known:
    return Known(Kind.ROWS, power) if has_row_of_each(shape) else ANY


def _kinds(given: list[Known]) -> set[Kind]:
    return {Kind.FREE if one.kind is Kind.ZERO else one.kind for one in given}


def _widest(kinds: set[Kind]) -> Kind:
    return next(kind for kind in (Kind.TOTAL, Kind.ROWS, Kind.FREE) if kind in kinds)


def _fits(op: Any, kinds: set[Kind]) -> bool:
    """True if rows meet rows of the same examples, and totals meet no rows."""
    shape = op.outputs[0].shape
    if Kind.TOTAL in kinds:
        return Kind.ROWS not in kinds and shape.is_fully_defined()
    if Kind.ROWS not in kinds:
        return True
    tensors = [one for one in op.inputs if one.shape.rank and one.shape[0] is None]
    return has_row_of_each(shape) and all(one.shape.rank == shape.rank for one in tensors)


def _table(rule: Rule, *types: str) -> dict[str, Rule]:
    return dict.fromkeys(types, rule)


_BACKWARD = {"ReluGrad": 0, "Relu6Grad": 0, "LeakyReluGrad": 0, "EluGrad": 0, "SeluGrad": 0, "SoftplusGrad": 0}
_BACKWARD |= {"SoftsignGrad": 0, "SigmoidGrad": 1, "TanhGrad": 1, "SqrtGrad": 1, "RsqrtGrad": 1, "ReciprocalGrad": 1}
#: by the type of an operation: what is known of its outputs
RULES: dict[str, Rule] = {
    **_table(_sizes, "Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs"),
    **_table(_same, "Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "CheckNumericsV2"),
    **_table(_same, "Neg", "EnsureShape", "Cast"),
    **_table(_sum_of, "AddV2", "Add", "AddN", "Sub", "BiasAdd"),
    **_table(_product, "Mul", "MulNoNan"),
    **_table(_quotient, "RealDiv", "Div", "DivNoNan", "FloorDiv"),
    **_table(_elementwise, *ELEMENTWISE),
    **_table(_selected, "Select", "SelectV2"),
    **{name: _backward(number) for name, number in _BACKWARD.items()},
    **_table(_reduced, "Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"),
    **_table(_matrices, "MatMul"),
    **_table(_several_matrices, "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"),
    **_table(_einsum, "Einsum"),
    **_table(_laid_out, "Reshape", "ExpandDims", "Squeeze", "BroadcastTo", "Tile", "Pad", "PadV2", "MirrorPad"),
    **_table(_laid_out, "Slice", "OneHot", "StridedSlice", "StridedSliceGrad", "Transpose", "Split", "SplitV", "Fill"),
    **_table(_joined, "ConcatV2", "Pack"),
    **_table(_taken_apart, "Unpack"),
    **_table(_looked_up, "ResourceGather", "GatherV2"),
    **_table(_of_rows(0, 1), "Conv2D", "Conv3D", "DepthwiseConv2dNative"),
    **_table(_of_rows(0), "AvgPool", "MaxPool", "AvgPool3D", "MaxPool3D"),
    **_table(_of_rows(1), "AvgPoolGrad"),
    **_table(_of_rows(2), "MaxPoolGrad"),
    **_table(_of_rows(1, 2), "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
    **_table(_of_rows(0, is_total=True), "BiasAddGrad"),
    **{
        name: _of_rows(0, 2, is_total=True)
        for name in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
    },
    **_table(_of_last_axis, "Softmax", "LogSoftmax", *OF_CLASSES),
}


def is_free(given: Sequence[Known], tensors: Sequence[Any]) -> bool:
    """True if the outputs of an operation without a rule are free of the rows."""
    free = (FREE, ZERO)
    return all(one in free for one in given) and all(tensor.shape.is_fully_defined() for tensor in tensors)
