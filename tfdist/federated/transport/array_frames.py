"""Messages as frames: a JSON header and raw arrays, bounded before anything is read, and never a pickle.

A message is a tree of dicts with text keys, lists, texts, numbers, booleans, None, bytes and NumPy arrays of numbers.
A frame is its magic, the lengths of header and body, the header, and the body: arrays one after the other, each padded
to 8 bytes. The header has the tree, in which {"$": n} stands for array n, and the type and shape of each.
"""

import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigTypeError, CorruptDataError

HEAD = struct.Struct("<4sIQ")  # magic, bytes of the header, bytes of the body
MAGIC = b"tff1"
LARGEST_HEADER = 16 << 20
_PLACEHOLDER = "$"
_BYTES, _BFLOAT16 = "bytes", "bfloat16"
_ALIGNMENT = 8
_MOST_DIMENSIONS = 32
_TYPES = frozenset(
    f"{'|' if size == 1 else '<'}{kind}{size}"
    for kind, sizes in (("f", (2, 4, 8)), ("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("b", (1,)))
    for size in sizes
)


class FrameError(CorruptDataError):
    """The error of received data that are not a frame, or of a frame that is larger than agreed."""


def pack(message: dict[str, Any]) -> list[bytes | memoryview]:
    """Return a frame as buffers to be sent one after the other; arrays are not copied.

    Example:
        >>> frame = b"".join(pack({"weights": np.zeros(2, np.float32)}))
        >>> header, body = read_head(frame[: HEAD.size], largest=100)
        >>> unpack(frame[HEAD.size :][:header], frame[HEAD.size + header :])
        {'weights': array([0., 0.], dtype=float32)}
    """
    buffers: list[bytes | memoryview] = []
    described: list[Any] = []
    header = json.dumps([_packed(message, buffers, described), described], separators=(",", ":")).encode()
    if len(header) > LARGEST_HEADER:
        raise ConfigTypeError(
            f"the header of a message has {len(header)} bytes; {LARGEST_HEADER} are the most. Send numbers as arrays.",
            received=len(header),
        )
    body = sum(len(buffer) for buffer in buffers)
    return [HEAD.pack(MAGIC, len(header), body), header, *buffers]


def read_head(head: bytes, *, largest: int) -> tuple[int, int]:
    """Return the bytes of a frame's header and body, from its first bytes; refuse a body beyond ``largest`` unread."""
    magic, header, body = HEAD.unpack(head)
    if magic != MAGIC:
        raise FrameError("the other side does not send frames of tfdist.", received=bytes(magic))
    if header > min(LARGEST_HEADER, max(largest, 4096)) or body > largest:
        raise FrameError(
            f"a frame has {header} bytes of header and {body} of body; at most {largest} bytes may come here.",
            received=header + body,
        )
    return header, body


def unpack(header: bytes, body: bytes) -> dict[str, Any]:
    """Return the message of a frame. Its arrays share the memory of the body, and cannot be written."""
    try:
        parts = json.loads(header)
        if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[1], list):
            raise ValueError("its header is not a tree and a list")
        arrays = list(_arrays(parts[1], body))
        message = _unpacked(parts[0], arrays)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FrameError(f"a frame cannot be read: {error}.") from error
    if not isinstance(message, dict):
        raise FrameError("the message of a frame is not a mapping.", received=type(message).__name__)
    return message


def unpack_whole(frame: bytes) -> dict[str, Any]:
    """Return the message of a complete frame, such as one from a file."""
    frame = frame.ljust(HEAD.size, b"\0")  # a head that was cut is no head
    header, _ = read_head(frame[: HEAD.size], largest=len(frame))
    begin = HEAD.size + header
    return unpack(frame[HEAD.size : begin], frame[begin:])


def _packed(value: Any, buffers: list[bytes | memoryview], described: list[Any]) -> Any:
    if isinstance(value, dict):
        if not all(isinstance(name, str) and name != _PLACEHOLDER for name in value):
            raise ConfigTypeError(
                "the names in a message are texts, and none is '$'.", received=sorted(map(repr, value))
            )
        return {name: _packed(each, buffers, described) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(each, buffers, described) for each in value]
    if isinstance(value, bytes | np.ndarray):
        _append(value, buffers, described)
        return {_PLACEHOLDER: len(described) - 1}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ConfigTypeError(
        f"a message has a {type(value).__name__}; it can have texts, numbers, bytes, arrays, lists and mappings.",
        received=type(value).__name__,
    )


def _append(value: bytes | NDArray[Any], buffers: list[bytes | memoryview], described: list[Any]) -> None:
    if isinstance(value, bytes):
        described.append([_BYTES, [len(value)]])
        data: bytes | memoryview = value
    else:
        is_bfloat16 = value.dtype.name == _BFLOAT16  # which NumPy does not know
        known = np.ascontiguousarray(value).view(np.uint16) if is_bfloat16 else np.ascontiguousarray(value)
        little = known.astype(known.dtype.newbyteorder("<"), copy=False)
        if little.dtype.str not in _TYPES:
            raise ConfigTypeError(
                f"a message has an array of {value.dtype}; it can have arrays of whole numbers, floats and booleans.",
                received=str(value.dtype),
            )
        described.append([_BFLOAT16 if is_bfloat16 else little.dtype.str, list(value.shape)])
        data = little.reshape(-1).view(np.uint8).data
    buffers.append(data)
    if padding := -len(data) % _ALIGNMENT:
        buffers.append(bytes(padding))


def _arrays(described: Sequence[Any], body: bytes) -> Iterator[bytes | NDArray[Any]]:
    start = 0
    for one in described:
        kind, shape = one
        if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
            raise ValueError("a shape is not a short list")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"a shape is {str(shape)[:100]}")
        is_bytes = kind == _BYTES and len(shape) == 1
        if not is_bytes and kind not in _TYPES and kind != _BFLOAT16:
            raise ValueError(f"an array has the type {str(kind)[:100]!r}")
        dtype = np.dtype(np.uint8 if is_bytes else ml_dtypes.bfloat16 if kind == _BFLOAT16 else kind)
        length = math.prod(shape) * dtype.itemsize
        if length > len(body) - start:
            raise ValueError("its arrays are longer than its body")
        if is_bytes:
            yield body[start : start + length]
        else:
            yield np.frombuffer(body, dtype, math.prod(shape), start).reshape(shape)
        start += length + -length % _ALIGNMENT
    if start != len(body):
        raise ValueError("its body is not as long as its arrays")


def _unpacked(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_PLACEHOLDER}:
            place = value[_PLACEHOLDER]
            if type(place) is not int or not 0 <= place < len(arrays):
                raise ValueError(f"it has no array {str(place)[:100]!r}")
            return arrays[place]
        return {name: _unpacked(each, arrays) for name, each in value.items()}
    if isinstance(value, list):
        return [_unpacked(each, arrays) for each in value]
    return value
