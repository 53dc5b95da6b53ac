"""Classification of the rows of a sparse gradient: one per example, common to all replicas, or distinct on each.

A table of positions is looked up by `arange(length)` for any batch. On one device its gradient has one row for each
position. N replicas have N rows for each position, which belong together. Indices from examples (words), or repeated
for each example, all occur on one device, too. Indices that a replica has made distinct, by `tf.unique` or as the
`range` of the longest text, occur once each on one device. The graph shows, during tracing, on which inputs an index
depends.

Private names, read in TensorFlow 2.21.0: `FuncGraph.captures`, `FuncGraph.outer_graph`; `Graph._get_function` and its
`AtomicFunction.graph`; `Graph._create_op_internal`; `EagerTensor`. The gradient of a lookup has the form of
`_GatherGrad` (`resource_variable_ops.py`), that of several lookups the concatenation of
`AggregateIndexedSlicesGradients` (`backprop_util.py`).
"""

import enum
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class RowKind(enum.Enum):
    """The form in which one device would have the rows that replicas look up."""

    #: One device has the rows of all replicas, one after the other.
    OWN = "rows"
    #: One device has the sum of the replicas' rows at each place; all replicas have the same indices.
    COMMON = "common"
    #: One device has the sum of the replicas' rows for each index; a replica has no index twice.
    DISTINCT = "distinct"


# Ops that pass on the elements of their first input, in order.
_HAND_ON = ("Identity", "StopGradient", "PreventGradient", "Cast", "Reshape", "ExpandDims", "Squeeze", "EnsureShape")

# Ops whose values depend only on the shape of an input.
_OF_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "OnesLike", "ZerosLike")

_READS = ("ReadVariableOp", "ResourceGather", "VariableShape")

# Ops that return examples inside a function.
_INPUTS = ("IteratorGetNext", "OptionalGetValue", "IteratorGetNextSync")

# Ops with an output that has each element once, and the number of that output.
_MAKE_DISTINCT = {
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Range"), 0),
    # the gradient of `tf.sparse.segment_sum` adds up rows of one index itself
    **{f"SparseSegment{kind}GradV2": 1 for kind in ("Sum", "Mean", "SqrtN")},
}

# Further ops that keep elements of their first input distinct; added padding belongs to no example.
_KEEP_DISTINCT = ("Neg", "Slice", "StridedSlice", "Pad", "PadV2", "TopKV2")

# The names of operations that mark rows of a kind.
_MARKS = {kind: f"tfdist_kind_of_rows_{kind.value}" for kind in RowKind}

# A stand-in for sizes that are known only when a step runs; no model has this size.
_SOME_SIZE = 9973


def parts(indices: tf.Tensor, *, examples: int | None = None) -> list[tuple[tf.Tensor, RowKind]]:
    """Divide indices into tensors, in order, each with its kind; in eager mode there is one tensor of kind OWN."""
    if _is_eager(indices):
        return [(indices, RowKind.OWN)]
    called = _called(indices)
    if called is not None:
        return _parts_of_call(indices, called, examples)
    return [(part, kind) for part, _, kind in _judged(indices, examples)]


def _judged(indices: tf.Tensor, examples: int | None) -> list[tuple[tf.Tensor, tf.Tensor, RowKind]]:
    """Return each input of a concatenation of indices, its counterpart in the graph of the indices, and its kind."""
    origins = _Origins()

    def kind(part: tf.Tensor, repeated: bool) -> RowKind:
        marked = _marked(part.op)
        if marked is not None:
            return marked
        common = origins.are_common(part)
        if common is not None and (common or not repeated):
            return RowKind.COMMON
        if repeated:
            return RowKind.OWN
        return RowKind.DISTINCT if _is_distinct(part) else RowKind.OWN

    return [(part, here, kind(part, repeated)) for part, repeated, here in _concatenated(indices, examples)]


def _parts_of_call(indices: tf.Tensor, inside: tf.Tensor, examples: int | None) -> list[tuple[tf.Tensor, RowKind]]:
    """Return the parts of a call's result, classified inside the function; one of kind OWN if sizes are unknown."""
    if _called(inside) is not None:
        found = parts(inside, examples=examples)
        return [(indices, found[0][1] if len(found) == 1 else RowKind.OWN)]
    judged = _judged(inside, examples)
    if len(judged) == 1:
        return [(indices, judged[0][2])]
    sizes = [_size_outside(here, inside.graph, indices.op) for _, here, _ in judged]
    if None in sizes:
        return [(indices, RowKind.OWN)]
    pieces = tf.split(tf.reshape(indices, [-1]), sizes, num=len(sizes))
    return [(piece, kind) for piece, (_, _, kind) in zip(pieces, judged, strict=True)]


def _size_outside(part: tf.Tensor, function: Any, call: tf.Operation) -> Any:
    """Return the number of elements of a tensor in a called function, if it is static or the tensor is an argument."""
    if (known := part.shape.num_elements()) is not None:
        return known
    while part.op.type in _HAND_ON:
        part = part.op.inputs[0]
    place = next((place for place, given in enumerate(function.inputs) if given is part), None)
    return None if place is None else tf.size(call.inputs[place])


def _is_distinct(tensor: tf.Tensor) -> bool:
    """Return whether a tensor certainly has no element twice."""
    while True:
        op, outer = tensor.op, _outside(tensor)
        if outer is not None and not _is_eager(outer):
            tensor = outer
        elif _MAKE_DISTINCT.get(op.type) == tensor.value_index:
            return op.type != "UniqueV2" or op.inputs[0].shape.rank == 1
        elif op.type in (*_HAND_ON, *_KEEP_DISTINCT) and tensor.value_index == 0:
            tensor = op.inputs[0]
        elif op.type in ("AddV2", "Sub") and (scalars := [one.shape.rank == 0 for one in op.inputs]).count(True) == 1:
            tensor = op.inputs[scalars.index(False)]
        elif op.type == "GatherV2" and _selects(op.inputs[1]):
            tensor = op.inputs[0]
        else:
            return False


def _selects(places: tf.Tensor) -> bool:
    """Return whether places come from a mask or an order, so that they select no element twice."""
    while places.op.type in (*_HAND_ON, "StridedSlice"):
        places = places.op.inputs[0]
    return places.op.type in ("Where", "Range") or (places.op.type == "TopKV2" and places.value_index == 1)


def _called(tensor: tf.Tensor) -> Any:
    """Return the counterpart of a tensor inside the function whose call returns it, or None if no call does."""
    op = tensor.op
    if op.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    function = op.graph._get_function(op.get_attr("f").name)
    return None if function is None else function.graph.outputs[tensor.value_index]


def marked(indices: tf.Tensor, kind: RowKind) -> tf.Tensor:
    """Mark indices as being of a kind that the graph does not show, and return them."""
    return tf.identity(indices, name=_MARKS[kind])


def hands_on_common(tensor: Any) -> bool:
    """Return whether a tensor passes on the elements of one that is marked as common to all replicas."""
    if not isinstance(tensor, tf.Tensor) or _is_eager(tensor):
        return False
    while _marked(tensor.op) is not RowKind.COMMON:
        if tensor.op.type not in _HAND_ON:
            return False
        tensor = tensor.op.inputs[0]
    return True


def _marked(op: tf.Operation) -> RowKind | None:
    """Return the kind with which an operation marks its indices, or None."""
    return next((kind for kind, mark in _MARKS.items() if op.type == "Identity" and mark in op.name), None)


def _concatenated(
    tensor: tf.Tensor, examples: int | None, repeated: bool = False, here: tf.Tensor | None = None
) -> Iterator[tuple[tf.Tensor, bool, tf.Tensor]]:
    """Yield the inputs of a concatenation, whether each has a row per example, and the counterpart in its graph.

    For batches of fixed size TensorFlow computes shapes in Python, so a tensor repeated per example is constant.
    """
    sizes = _fixed_batch_sizes(tensor.graph) if examples is None else {examples} - {1}
    while True:
        repeated = repeated or ((tensor.shape.rank or 0) > 1 and tensor.shape[0] in sizes)
        op, outer = tensor.op, _outside(tensor)
        if _marked(op) is not None:
            yield tensor, repeated, here if here is not None else tensor
            return
        if outer is not None and not _is_eager(outer):
            here = tensor if here is None else here
            tensor = outer
        elif op.type in _HAND_ON or _counts_from_the_end(op):
            tensor = op.inputs[-1 if op.type == "SelectV2" else 0]
        elif op.type == "ConcatV2" and _static(op.inputs[-1]) == 0:
            for part in op.inputs[:-1]:
                yield from _concatenated(part, examples, repeated, None if here is None else part)
            return
        else:
            yield tensor, repeated, here if here is not None else tensor
            return


def _counts_from_the_end(op: tf.Operation) -> bool:
    """Return whether an op is Keras' conversion of negative indices: where(x < 0, x + rows, x)."""
    if op.type != "SelectV2":
        return False
    negative, counted, x = op.inputs
    return all(one.op.type in ("Less", "AddV2") and one.op.inputs[0] is x for one in (negative, counted))


def _fixed_batch_sizes(graph: Any) -> set[int]:
    """Return the fixed numbers of rows, above 1, of the inputs of the outermost function."""
    while _is_inside(graph):
        graph = graph.outer_graph
    given = [one for one in getattr(graph, "inputs", ()) if one.shape.rank and _outside(one) is None]
    given = [one for one in given if not _becomes_common(one)]
    return {one.shape[0] for one in given if (one.shape[0] or 0) > 1}


def _becomes_common(given: tf.Tensor) -> bool:
    """Return whether the function marks an argument as common to all replicas."""
    readers = [op for op in given.consumers() if op.type == "Identity"]
    return any(_marked(op) is RowKind.COMMON or _becomes_common(op.outputs[0]) for op in readers)


def _is_inside(graph: Any) -> bool:
    """Return whether a graph belongs to a function inside another one, such as a branch of a condition."""
    return hasattr(getattr(graph, "outer_graph", None), "captures")


def _is_eager(tensor: Any) -> bool:
    return isinstance(tensor, tf.__internal__.EagerTensor)


def _outside(tensor: tf.Tensor) -> Any:
    """Return the counterpart of a captured tensor in the outer function, or None if the tensor is not captured."""
    if tensor.op.type != "Placeholder":
        return None
    captures = getattr(tensor.graph, "captures", ())
    return next((external for external, internal in captures if internal is tensor), None)


def _static(tensor: tf.Tensor) -> Any:
    value = tf.get_static_value(tensor)
    return None if value is None else value.tolist()


class _Origins:
    """The origins of the values in a graph."""

    def __init__(self) -> None:
        self._twins = _Twins()

    def are_common(self, tensor: tf.Tensor) -> bool | None:
        """Return whether a value depends on a common input; None if it depends on the examples or their number."""
        seen: set[Any] = set()
        ahead, is_of_input = [tensor], False
        while ahead:
            one = ahead.pop()
            if one.ref() in seen:
                continue
            seen.add(one.ref())
            further = self._hangs_on(one)
            if further is None:
                return None
            is_of_input = is_of_input or _marked(one.op) is RowKind.COMMON
            ahead.extend(further)
        return is_of_input

    def _hangs_on(self, tensor: tf.Tensor) -> list[tf.Tensor] | None:
        """Return the tensors that must be common for this one to be common; None if it cannot be."""
        op = tensor.op
        if _marked(op) is RowKind.COMMON:
            return []
        if op.type == "Placeholder":
            outer = _outside(tensor)
            return None if outer is None or outer.dtype == tf.resource else [] if _is_eager(outer) else [outer]
        if op.type == "StridedSlice" and op.inputs[0].op.type == "Shape":
            sizes = self._twins.shape(op.inputs[0].op.inputs[0])
            return None if sizes.rank is None or None in _taken(sizes.as_list(), op) else []
        if op.type in _OF_SHAPE:
            sizes = self._twins.shape(op.inputs[tensor.value_index])
            return [] if sizes.is_fully_defined() or (op.type == "Rank" and sizes.rank is not None) else None
        if op.type in ("ReadVariableOp", "ResourceGather"):
            return list(op.inputs[1:]) if _is_only_read(op.inputs[0]) else None
        return None if op.op_def.is_stateful else list(op.inputs)


def _taken(sizes: list[Any], op: tf.Operation) -> list[Any]:
    """Return the sizes that a slice takes from a shape; all sizes if the slice is not a simple one."""
    begin, end, strides = (_static(bound) for bound in op.inputs[1:])
    masks = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if begin is None or end is None or strides is None or len(begin) != 1 or masks["ellipsis"] or masks["new_axis"]:
        return sizes
    if masks["shrink_axis"]:
        return [sizes[begin[0]]]
    return sizes[None if masks["begin"] else begin[0] : None if masks["end"] else end[0] : strides[0]]


def _is_only_read(handle: tf.Tensor) -> bool:
    """Return whether a step has only read a variable so far, so that its values are equal on all replicas."""
    while not any(op.type not in _READS for op in handle.consumers()):
        outer = _outside(handle)
        if outer is None or _is_eager(outer):
            return outer is not None
        handle = outer
    return False


class _Twins:
    """Copies of a graph's tensors in which all sizes but the number of examples are known."""

    def __init__(self) -> None:
        self._graph = tf.Graph()
        self._twins: dict[Any, tf.Tensor] = {}

    def shape(self, tensor: tf.Tensor) -> tf.TensorShape:
        """Return the shape of a tensor's copy."""
        ahead = [tensor]
        while ahead:
            needed = [one for one in _needed(ahead[-1]) if one.ref() not in self._twins]
            if needed:
                ahead.extend(needed)
            else:
                self._make(ahead.pop())
        return self._twins[tensor.ref()].shape

    def _make(self, tensor: tf.Tensor) -> None:
        op, needed = tensor.op, [self._twins[one.ref()] for one in _needed(tensor)]
        made: list[tf.Tensor] = []
        with self._graph.as_default():
            if _marked(op) is RowKind.COMMON:
                made = [_placeholder(tensor, _with_some_sizes(tensor.shape))]
            elif _outside(tensor) is not None and needed:
                made = needed
            elif needed and op.type == "ResourceGather":
                made = [_placeholder(tensor, needed[0].shape.concatenate(tensor.shape[op.inputs[1].shape.rank or 0 :]))]
            elif op.type == "GatherV2" and op.inputs[0].shape.rank == 1 and _static(op.inputs[1]):
                # A product of tensors selects sizes by number; shape inference does not look through this op.
                made = [tf.stack([needed[0][place] for place in _static(op.inputs[1])])]
            elif not _is_copied(op):
                made = [_placeholder(one, _shape_of_source(one)) for one in op.outputs]
            else:
                attrs = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
                types = [one.dtype for one in op.outputs]
                try:
                    copied = self._graph._create_op_internal(op.type, needed, types, attrs=attrs, op_def=op.op_def)
                    made = list(copied.outputs)
                except (TypeError, ValueError, tf.errors.OpError):  # the sizes do not fit together
                    made = [_placeholder(one, tf.TensorShape(None)) for one in op.outputs]
        outputs = [tensor] if len(made) < len(op.outputs) else op.outputs
        for one, twin in zip(outputs, made, strict=True):
            self._twins[one.ref()] = twin


def _placeholder(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    return tf.compat.v1.placeholder(tensor.dtype, shape)


def _is_copied(op: tf.Operation) -> bool:
    """Return whether the shapes of an op's outputs can be inferred from a copy of the op."""
    has_function = any(attr.HasField("func") or attr.list.func for attr in op.node_def.attr.values())
    opaque = any(one.dtype in (tf.resource, tf.variant) for one in (*op.inputs, *op.outputs))
    return op.type != "Placeholder" and not (op.op_def.is_stateful or has_function or opaque)


def _needed(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Return the tensors whose copies must be made first."""
    if _marked(tensor.op) is RowKind.COMMON:
        return []
    outer = _outside(tensor)
    if outer is not None:
        return [] if _is_eager(outer) or outer.dtype == tf.resource else [outer]
    if tensor.op.type == "ResourceGather":
        return [tensor.op.inputs[1]]
    return list(tensor.op.inputs) if _is_copied(tensor.op) else []


def _shape_of_source(tensor: tf.Tensor) -> tf.TensorShape:
    """Return the shape for the copy of a source; all axes of an input except the first get a known size."""
    shape, op = tensor.shape, tensor.op
    if not shape.rank or op.type == "ReadVariableOp" or _outside(tensor) is not None:
        return shape
    if op.type in _INPUTS or (op.type == "Placeholder" and not _is_inside(tensor.graph)):
        return tf.TensorShape([None]).concatenate(_with_some_sizes(shape[1:]))
    return tf.TensorShape([None] * shape.rank)


def _with_some_sizes(shape: tf.TensorShape) -> tf.TensorShape:
    if shape.rank is None:
        return shape
    return tf.TensorShape([_SOME_SIZE if size is None else size for size in shape])
