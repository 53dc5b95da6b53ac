"""The framing of TFRecord files: records with two checksums, found one after the other or after a corrupt stretch.

A record is ``uint64 length, uint32 crc(length), payload, uint32 crc(payload)``, little-endian, each CRC-32C masked as
TensorFlow masks it so that data which contains checksums does not confuse them.

Example:
    >>> data = frame(b"first") + frame(b"")
    >>> scan(data).offsets.tolist()
    [0, 21, 37]
"""

import struct
from collections.abc import Iterable
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
_SEARCH_BYTES = 1 << 20


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


def footer(payload: Iterable[bytes]) -> bytes:
    """Return the last 4 bytes of a record whose payload is given in pieces."""
    crc = 0
    for piece in payload:
        crc = google_crc32c.extend(crc, piece)
    return _CRC.pack(masked(crc))


def frame_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the records of payloads of one length."""
    count, length = rows.shape
    framed = np.empty((count, length + OVERHEAD_BYTES), np.uint8)
    framed[:, :HEADER_BYTES] = np.frombuffer(header(length), np.uint8)
    framed[:, HEADER_BYTES:-4] = rows
    value, data = google_crc32c.value, np.ascontiguousarray(rows).tobytes()
    crcs = np.fromiter((value(data[i : i + length]) for i in range(0, count * length, length)), np.uint32, count)
    if not length:
        crcs = np.zeros(count, np.uint32)  # the CRC-32C of nothing
    framed[:, -4:] = masked_each(crcs).astype("<u4").view(np.uint8).reshape(count, 4)
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
    """Return where the records from ``start`` on begin, by their headers, up to the end or the first that is none."""
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

    Example:
        >>> resynchronise(b"no record" + frame(b"one"), 0)
        9
    """
    end = len(data)
    while start + OVERHEAD_BYTES <= end:
        stop = min(end, start + _SEARCH_BYTES)
        for candidate in headers(bytes(data[start : min(end, stop + HEADER_BYTES - 1)]), end - start):
            position = start + int(candidate)
            if payload_fits(data, position, _LENGTH.unpack_from(data, position)[0]):
                return position
        start = stop
    return end


def headers(data: bytes, room: int) -> NDArray[np.int64]:
    """Return the positions at which a header stands whose checksum fits and whose record ends within the data.

    Example:
        >>> headers(b"no record" + header(5), room=30).tolist(), headers(b"no record" + header(5), room=29).tolist()
        ([9], [])
    """
    window = np.frombuffer(data, np.uint8)
    count = len(window) - HEADER_BYTES + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    # Files have less than 2^48 bytes: of random positions few are left, and of a stretch of zeros all.
    places = np.flatnonzero((window[6 : 6 + count] | window[7 : 7 + count]) == 0)
    lengths = np.zeros(len(places), np.int64)
    for byte in range(6):
        lengths |= window[places + byte].astype(np.int64) << (8 * byte)
    places = places[lengths <= room - places - OVERHEAD_BYTES]
    crcs = np.full(len(places), _CRC_OF_ZEROS, np.uint32)
    for byte in range(8):
        crcs ^= _CRC_OF_BYTE[byte][window[places + byte]]
    stored = sum(window[places + 8 + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
    return places[masked_each(crcs) == stored]


def masked_each(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return CRCs as records store them, see `masked`."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


# A CRC is affine: that of eight bytes is that of eight zeros, and what each byte adds at its place.
_CRC_OF_ZEROS = google_crc32c.value(bytes(8))
_CRC_OF_BYTE = [
    np.array(
        [google_crc32c.value(bytes(place) + bytes([byte]) + bytes(7 - place)) ^ _CRC_OF_ZEROS for byte in range(256)],
        np.uint32,
    )
    for place in range(8)
]
