"""Arrays in a safetensors file, written and read without an intermediate copy.

Wider types come first, so every array is aligned in a memory map of the file. The safetensors library can read it.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import google_crc32c
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError

PIECE_BYTES = 256 << 10  # checksums hold Python's lock for 50 us of these at a time
LARGEST_HEADER = 16 << 20
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_MOST_DIMENSIONS = 32  # of NumPy 1
_Array = NDArray[Any]
_Kind = tuple[str, tuple[int, ...]]


def as_arrays(arrays: Mapping[str, Any]) -> dict[str, _Array]:
    """Return contiguous arrays in this machine's byte order, ready to be written; only other arrays are copied."""
    if not isinstance(arrays, Mapping):
        raise validation.mismatch("arrays", arrays, "a mapping of names to arrays.", kind=ConfigTypeError)
    found = {}
    for name, value in arrays.items():
        _need_name(name)
        array = np.asarray(value, order="C")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        if array.dtype not in _CODES:
            raise ConfigTypeError(
                f"the array {name!r} has dtype {array.dtype}; it must be one of "
                f"{', '.join(sorted(str(dtype) for dtype in _CODES))}. Convert it, or put it into state.",
                name=name,
                received=str(array.dtype),
            )
        found[name] = array
    return found


def write(
    file: BinaryIO, arrays: Mapping[str, _Array], *, on_middle: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Write the result of `as_arrays` without copying it; return the number of bytes and their CRC-32C."""
    head = _header((name, (_CODES[array.dtype], array.shape)) for name, array in arrays.items())
    if len(head) > LARGEST_HEADER:
        raise ConfigError(
            f"the names of the arrays take {len(head)} bytes; at most {LARGEST_HEADER} can be written.",
            name="arrays",
            received=len(head),
        )
    total = len(head) + sum(array.nbytes for array in arrays.values())
    checksum, written, is_first_half = google_crc32c.value(head), file.write(head), True
    for name in sorted(arrays, key=lambda name: _place(name, arrays[name].dtype)):
        flat = arrays[name].reshape(-1).view(np.uint8)
        for begin in range(0, flat.size, PIECE_BYTES):
            if is_first_half and written >= total // 2:
                is_first_half = False
                on_middle()
            piece = flat[begin : begin + PIECE_BYTES]
            checksum = google_crc32c.extend(checksum, piece)
            written += file.write(piece.data)
    if is_first_half:
        on_middle()
    assert written == total
    return total, checksum


def crc32c(data: NDArray[np.uint8]) -> int:
    """Return the CRC-32C of bytes, releasing Python's lock in between."""
    checksum = 0
    for begin in range(0, data.size, PIECE_BYTES):
        checksum = google_crc32c.extend(checksum, data[begin : begin + PIECE_BYTES])
    return checksum


def read(data: NDArray[np.uint8]) -> dict[str, _Array]:
    """Return the arrays of a mapped or loaded file, read-only, without copying them."""
    kinds, begin = _kinds(data)
    arrays = {}
    for name, (code, shape) in kinds.items():
        dtype = _DTYPES[code]
        end = begin + math.prod(shape) * dtype.itemsize
        if end > data.size:
            raise CorruptDataError(f"it ends at {data.size} bytes, before the array {name!r}.")
        array = data[begin:end].view(dtype).reshape(shape)
        array.flags.writeable = False
        arrays[name], begin = array, end
    if begin != data.size:
        raise CorruptDataError(f"it has {data.size} bytes; its arrays take {begin}.")
    return arrays


def _kinds(data: NDArray[np.uint8]) -> tuple[dict[str, _Kind], int]:
    """Return the dtype and shape of each array, in the order of the file, and where the first one begins."""
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(LARGEST_HEADER, data.size - 8):
        raise CorruptDataError(f"its header would have {length} bytes of {data.size}; at most {LARGEST_HEADER} can be.")
    head = data[: 8 + length].tobytes()
    try:
        found = json.loads(head[8:])
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"its header is not JSON ({error}).") from None
    if not isinstance(found, dict):
        raise CorruptDataError("its header is no object.")
    try:
        kinds = {name: _kind(name, value) for name, value in found.items()}
        is_spelled = _header(kinds.items()) == head
    except ConfigError as error:
        raise CorruptDataError(str(error)) from None
    if not is_spelled:  # places are not read but computed: what differs in anything is refused
        raise CorruptDataError("its header is not spelled as it was written.")
    return kinds, len(head)


def _kind(name: str, value: Any) -> _Kind:
    _need_name(name)
    code, shape = (value.get("dtype"), value.get("shape")) if isinstance(value, dict) else (None, None)
    if not isinstance(code, str) or code not in _DTYPES or not isinstance(shape, list):
        raise ConfigError(f"the array {name!r} is {validation.shown(value)}, which cannot be.")
    if len(shape) > _MOST_DIMENSIONS:
        raise ConfigError(f"the array {name!r} has {len(shape)} dimensions; at most {_MOST_DIMENSIONS} can be.")
    sizes = tuple(validation.integer(f"the shape of {name!r}", size, minimum=0, maximum=1 << 62) for size in shape)
    if math.prod(size or 1 for size in sizes) > 1 << 60:  # NumPy counts also where there is nothing
        raise ConfigError(f"the array {name!r} has shape {validation.shown(sizes)}, which cannot be.")
    return code, sizes


def _header(kinds: Iterable[tuple[str, _Kind]]) -> bytes:
    """Return the beginning of a safetensors file: its length, then JSON, then spaces up to a multiple of 8 bytes."""
    found, begin = {}, 0
    for name, (code, shape) in sorted(kinds, key=lambda item: _place(item[0], _DTYPES[item[1][0]])):
        end = begin + math.prod(shape) * _DTYPES[code].itemsize
        found[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(found, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _place(name: str, dtype: np.dtype[Any]) -> tuple[int, str]:
    return -dtype.itemsize, name


def _need_name(name: Any) -> None:
    if not isinstance(name, str):
        raise validation.mismatch("the name of an array", name, "a text.", name="arrays", kind=ConfigTypeError)
    if name == "__metadata__" or any("\ud800" <= sign <= "\udfff" for sign in name):
        raise ConfigError(
            f"the name of an array is {name!r}, which a safetensors file cannot hold. Choose another.",
            name="arrays",
            received=name,
        )
