"""Keeps the protocol buffers of small constants in graphs, in every process that is forked from this one.

For each constant that it traces TensorFlow makes an array, compares and converts it, and writes it into a new buffer. A
step has a hundred of them, mostly the same numbers and shapes again: a thirtieth of a short training.
"""

import functools
import inspect
import math
from typing import Any

import numpy as np
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_callbacks, ops, tensor_util

_made = ops._create_graph_constant
_PARAMETERS = ["value", "dtype", "shape", "name", "verify_shape", "allow_broadcast"]
assert [*inspect.signature(_made).parameters] == _PARAMETERS, "what makes constants of graphs has changed"
_LARGEST = 16  # elements


def _key(value: Any) -> Any:
    """Return what tells a value from all others; None if it is not one of those that are kept."""
    kind = type(value)
    if kind is int or kind is bool:
        return kind, value
    if kind is float:
        return None if math.isnan(value) else (kind, value, math.copysign(1.0, value))
    if kind is list or kind is tuple:
        return (kind, *value) if len(value) <= _LARGEST and _is_of_ints(value) else None
    if kind is np.ndarray and value.size <= _LARGEST and not value.dtype.hasobject:
        return kind, value.dtype, value.shape, value.tobytes()
    return None


def _is_of_ints(value: Any) -> bool:
    return type(value) in (list, tuple) and all(type(one) is int for one in value)


class _Value:
    """A value whose key tells whether it is the same as another."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(maxsize=4096)
def _kept(
    held: _Value, dtype: Any, shape: Any, verify_shape: bool, allow_broadcast: bool
) -> tuple[Any, dict[str, Any]]:
    proto = tensor_util.make_tensor_proto(
        held.value, dtype=dtype, shape=shape, verify_shape=verify_shape, allow_broadcast=allow_broadcast
    )
    value = attr_value_pb2.AttrValue(tensor=proto)
    return proto.dtype, {"value": value, "dtype": attr_value_pb2.AttrValue(type=proto.dtype)}


def _create_graph_constant(
    value: Any, dtype: Any, shape: Any, name: Any, verify_shape: bool, allow_broadcast: bool
) -> Any:
    key = _key(value)
    if key is None or op_callbacks.should_invoke_op_callbacks() or not (shape is None or _is_of_ints(shape)):
        return _made(value, dtype, shape, name, verify_shape, allow_broadcast)
    asked = None if shape is None else tuple(shape)
    kind, attributes = _kept(_Value(key, value), dtype, asked, verify_shape, allow_broadcast)
    operation = ops.get_default_graph()._create_op_internal("Const", [], [kind], attrs={**attributes}, name=name)
    return operation.outputs[0]


ops._create_graph_constant = _create_graph_constant
