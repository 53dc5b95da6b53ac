"""Nested Python values as JSON and arrays, and back: exactly, or not at all."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigTypeError

_ARRAY, _TUPLE, _SCALAR, _PAIRS = "__array__", "__tuple__", "__scalar__", "__pairs__"


def encode(value: Any, arrays: dict[str, NDArray[Any]], name: str) -> Any:
    """Return a value as JSON, and put the arrays in it into ``arrays``."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, np.generic):
        dtype = value.dtype.name if value.dtype.kind == "V" else value.dtype.str  # such as bfloat16
        return {_SCALAR: [dtype, value.item()]}
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUSMm":
        arrays[name] = value.copy()  # its owner may write into it later
        return {_ARRAY: name}
    if isinstance(value, (list, tuple)):
        items = [encode(item, arrays, f"{name}/{place}") for place, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if isinstance(value, Mapping):
        keys = list(value)
        if all(isinstance(key, str) and not key.startswith("__") for key in keys) and keys == sorted(keys):
            return {key: encode(item, arrays, f"{name}/{key}") for key, item in value.items()}
        # JSON that is compared byte by byte has its keys sorted, and the order of a dict is part of it
        return {_PAIRS: [encode(tuple(pair), arrays, f"{name}/{place}") for place, pair in enumerate(value.items())]}
    if hasattr(value, "numpy"):
        return encode(np.asarray(value.numpy()), arrays, name)
    raise ConfigTypeError(
        f"{name} is a {type(value).__name__}; what a backup keeps must be None, a bool, a number, text, an array, or a "
        "list, tuple or dict of these.",
        name=name,
        received=type(value).__name__,
    )


def decode(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_ARRAY}:
        return np.array(arrays[value[_ARRAY]])
    if set(value) == {_TUPLE}:
        return tuple(decode(item, arrays) for item in value[_TUPLE])
    if set(value) == {_SCALAR}:
        dtype, number = value[_SCALAR]
        return np.dtype(dtype).type(number)
    if set(value) == {_PAIRS}:
        return dict(decode(pair, arrays) for pair in value[_PAIRS])
    return {key: decode(item, arrays) for key, item in value.items()}
