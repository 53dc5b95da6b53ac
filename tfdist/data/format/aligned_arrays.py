"""Arrays that TensorFlow takes as they are: it copies those that do not begin at a multiple of 64 bytes."""

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_BYTES = 64
_SMALL = 4096  # bytes, whose copy costs less than this


def aligned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of any values, as `numpy.empty` makes it."""
    kind = np.dtype(dtype)
    size = kind.itemsize * (shape if isinstance(shape, int) else math.prod(shape))
    if size < _SMALL:
        return np.empty(shape, kind)
    room = np.empty(size + _BYTES, np.uint8)
    begin = -room.__array_interface__["data"][0] % _BYTES
    return room[begin : begin + size].view(kind).reshape(shape)
