"""The framing of TFRecord files: records with two checksums, found one after the other or after a corrupt stretch.

A record is ``uint64 length, uint32 crc(length), payload, uint32 crc(payload)``, little-endian, each CRC-32C masked as
TensorFlow masks it so that data which contains checksums does not confuse them.

Example:
    >>> data = frame(b"first") + frame(b"")
    >>> scan(data).offsets.tolist()
    [0, 21, 37]
"""

import struct
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 12  # length and its checksum
OVERHEAD_BYTES = 16  # the same, and the payload's checksum
_MASK_DELTA = 0xA282EAD8
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
_SEARCH_BYTES = 1 << 22


def masked_crc(data: Any) -> int:
    """Return the masked CRC-32C of bytes, as a record stores it.

    Example:
        >>> hex(masked_crc(b"123456789"))
        '0xc78ab0e5'
    """
    return masked(google_crc32c.value(data if isinstance(data, bytes) else bytes(data)))


def masked(crc: int) -> int:
    """Return a CRC as a record stores it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return a record with this payload."""
    return header(len(payload)) + payload + _CRC.pack(masked_crc(payload))


def header(length: int) -> bytes:
    """Return the first 12 bytes of a record whose payload has ``length`` bytes."""
    packed = _LENGTH.pack(length)
    return packed + _CRC.pack(masked_crc(packed))


def frame_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the records of payloads of one length.

    Args:
        rows: uint8, ``[records, length]``.
    Returns:
        uint8, ``[records, length + 16]``.
    """
    count, length = rows.shape
    framed = np.empty((count, length + OVERHEAD_BYTES), np.uint8)
    framed[:, :HEADER_BYTES] = np.frombuffer(header(length), np.uint8)
    framed[:, HEADER_BYTES:-4] = rows
    value, data = google_crc32c.value, np.ascontiguousarray(rows).tobytes()
    crcs = np.fromiter((value(data[i : i + length]) for i in range(0, count * length, length)), np.uint32, count)
    if not length:
        crcs = np.zeros(count, np.uint32)  # the CRC-32C of nothing
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    framed[:, -4:] = (rotated + np.uint32(_MASK_DELTA)).astype("<u4").view(np.uint8).reshape(count, 4)
    return framed


@dataclass(frozen=True)
class Scan:
    """Where records begin.

    Attributes:
        offsets: int64, ``[records + 1]``: where each begins, and where the last ends.
        problem: what stands at the last offset that is no record; empty when the data ends there.
    """

    offsets: NDArray[np.int64]
    problem: str = ""


def scan(data: Any, start: int = 0) -> Scan:
    """Return where the records from ``start`` on begin, by their headers, up to the end or the first that is none.

    Args:
        data: bytes, a memory map, or anything with a buffer.
        start: where the first record begins, bytes.
    """
    end, offsets, position, problem = len(data), [start], start, ""
    crc_of = google_crc32c.value
    while position < end:
        if end - position < OVERHEAD_BYTES:
            problem = f"{end - position} bytes, too few for a record"
            break
        length, crc = _HEADER.unpack_from(data, position)
        if crc != masked(crc_of(bytes(data[position : position + 8]))):
            problem = "a header whose checksum does not fit"
            break
        if length > end - position - OVERHEAD_BYTES:
            problem = f"a record of {length} bytes that goes beyond the end of the file"
            break
        position += length + OVERHEAD_BYTES
        offsets.append(position)
    return Scan(np.asarray(offsets, np.int64), problem)


def payload_fits(data: Any, offset: int, length: int) -> bool:
    """Return whether the payload at ``offset`` of a record has the checksum that stands behind it."""
    begin, end = offset + HEADER_BYTES, offset + HEADER_BYTES + length
    return bool(masked_crc(data[begin:end]) == _CRC.unpack_from(data, end)[0])


def resynchronise(data: Any, start: int) -> int:
    """Return where the next record whose two checksums fit begins, at ``start`` or later; the data's end if none does.

    Every position is tried: a corrupt stretch may have any length.
    """
    end = len(data)
    while start + OVERHEAD_BYTES <= end:
        stop = min(end, start + _SEARCH_BYTES)
        window = np.frombuffer(bytes(data[start : min(end, stop + HEADER_BYTES)]), np.uint8)
        for candidate in _plausible(window, end - start):
            position = start + int(candidate)
            length, crc = _HEADER.unpack_from(data, position)
            if crc == masked(google_crc32c.value(bytes(data[position : position + 8]))) and payload_fits(
                data, position, length
            ):
                return position
        start = stop
    return end


def _plausible(window: NDArray[np.uint8], room: int) -> NDArray[np.int64]:
    """Return the positions at which eight bytes, taken as a length, lead to a place within the data."""
    count = len(window) - HEADER_BYTES + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    lengths = np.zeros(count, np.uint64)
    for byte in range(8):
        lengths |= window[byte : byte + count].astype(np.uint64) << np.uint64(8 * byte)
    positions = np.arange(count, dtype=np.int64)
    ends = room - positions - OVERHEAD_BYTES
    return positions[(ends >= 0) & (lengths <= np.maximum(ends, 0).astype(np.uint64))]
