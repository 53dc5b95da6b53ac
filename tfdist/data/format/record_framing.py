"""The framing of TFRecord files: records with two checksums, and the search for records in damaged files.

A record is ``uint64 length, uint32 crc(length), payload, uint32 crc(payload)``, little-endian. Each CRC-32C is masked
as in TensorFlow, so that data which contains checksums does not confuse them.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ShortReadError
from tfdist.storage.directory import Storage

HEADER_BYTES = 12  # length and its checksum
OVERHEAD_BYTES = 16  # the same, and the payload's checksum
_MASK_DELTA = 0xA282EAD8
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
_SEARCH_BYTES = 1 << 20
WINDOW_BYTES = 8 << 20
#: the largest protocol buffer, and so the largest tf.train.Example
LARGEST_PAYLOAD = (1 << 31) - 1

GAVE_UP = "so much that is corrupt that the rest was not searched"


def masked_crc(data: Any) -> int:
    return masked(google_crc32c.value(data if isinstance(data, bytes) else bytes(data)))


def masked(crc: int) -> int:
    """Return a CRC as a record stores it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
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
    count, length = rows.shape
    framed = np.empty((count, length + OVERHEAD_BYTES), np.uint8)
    framed[:, :HEADER_BYTES] = np.frombuffer(header(length), np.uint8)
    framed[:, HEADER_BYTES:-4] = rows
    value, data = google_crc32c.value, np.ascontiguousarray(rows).tobytes()
    crcs = np.fromiter((value(data[i : i + length]) for i in range(0, count * length, length)), np.uint32, count)
    framed[:, -4:] = masked_each(crcs).astype("<u4").view(np.uint8).reshape(count, 4)
    return framed


@dataclass(frozen=True)
class Scan:
    """`offsets` has the first byte of each record and the end of the last, int64 ``[records + 1]``.

    `problem` says what follows the last offset and is no record; it is empty at the end of the data.
    """

    offsets: NDArray[np.int64]
    problem: str = ""


def scan(data: Any) -> Scan:
    """Find records by their headers, up to the end or to the first header that does not fit."""
    end, offsets, position, problem = len(data), [0], 0, ""
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
    """Return whether the payload of the record at ``offset`` fits the checksum that follows it."""
    begin, end = offset + HEADER_BYTES, offset + HEADER_BYTES + length
    return bool(masked_crc(data[begin:end]) == _CRC.unpack_from(data, end)[0])


def headers(data: bytes, room: int) -> NDArray[np.int64]:
    """Return the positions of headers whose checksum fits and whose record ends within the data."""
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


class Found(NamedTuple):
    """A record with its frame, or a stretch without a record: then `payload` is None, and `problem` says why."""

    offset: int
    size: int
    payload: bytes | None
    problem: str = ""


class Content:
    """A file of a storage, read through a window; its checksum is computed on the way."""

    def __init__(self, place: Storage, name: str, *, seen: Callable[[int], None] | None = None) -> None:
        self._place = place
        self._name = name
        self._seen = seen
        self.size = place.size(name)
        self.data = b""
        self.begin = 0  # of the window in the file
        self._crc = 0
        self._summed = 0  # bytes that are in the checksum

    def has(self, offset: int, size: int) -> bytes:
        """Return the window after making it hold these bytes of the file, which are at ``offset - begin``."""
        if not self.begin <= offset <= offset + size <= self.begin + len(self.data):
            self.data = self._read(offset, max(size, WINDOW_BYTES))
            self.begin = offset
        return self.data

    def part(self, offset: int, size: int) -> bytes:
        place = offset - self.begin
        if place >= 0 and place + size <= len(self.data):
            return self.data[place : place + size]
        return self._read(offset, size)

    def crc_of(self, offset: int, size: int) -> int:
        """Return the CRC-32C of a stretch, with no more than a window in memory."""
        if self.begin <= offset <= offset + size <= self.begin + len(self.data):
            return int(google_crc32c.value(self.data[offset - self.begin : offset - self.begin + size]))
        crc, end = 0, offset + size
        while offset < end:
            part = self._read(offset, min(WINDOW_BYTES, end - offset))
            crc = google_crc32c.extend(crc, part)
            offset += len(part)
        return int(crc)

    def crc(self) -> int:
        """Return the CRC-32C of the whole file, as in the manifest; the unread rest is read first."""
        while self._summed < self.size:
            self._read(self._summed, WINDOW_BYTES)
        return self._crc

    def _read(self, offset: int, size: int) -> bytes:
        data = self._place.read(self._name, offset, min(size, self.size - offset))
        if not data and size:
            raise ShortReadError(f"{self._name} ends at byte {offset} while it is read. Was it replaced? Start again.")
        if offset <= self._summed < offset + len(data):
            fresh = data[self._summed - offset :] if offset < self._summed else data
            self._crc = google_crc32c.extend(self._crc, fresh)
            self._summed = offset + len(data)
            if self._seen is not None:
                self._seen(len(fresh))
        return data


def walk(content: Content) -> Iterator[Found]:
    """Yield the content of a file in order, without a gap: records, and stretches without records.

    A header that does not fit hides its record; reading continues at the next whole record. A file that is crafted to
    cost time takes at most a few times as long as a plain read: then its rest is one stretch.
    """
    position, size, budget = 0, content.size, _Budget(2 * content.size + (1 << 20))
    while position < size:
        found = _next(content, position, budget)
        yield found
        position = found.offset + found.size


class _Budget:
    """The number of bytes that may still be searched in vain."""

    def __init__(self, left: int) -> None:
        self.left = left


def _next(content: Content, position: int, budget: _Budget) -> Found:
    size, left = content.size, content.size - position
    if left < OVERHEAD_BYTES:
        return Found(position, left, None, f"{left} bytes, too few for a record")
    data = content.has(position, HEADER_BYTES)
    place = position - content.begin
    length, crc = _HEADER.unpack_from(data, place)
    if crc != masked(google_crc32c.value(data[place : place + 8])):
        return _gap(content, position, "a header whose checksum does not fit", budget)
    if length > left - OVERHEAD_BYTES:
        return _gap(content, position, f"a record of {length} bytes, which goes beyond the end of the file", budget)
    if length <= LARGEST_PAYLOAD:
        data = content.has(position, length + OVERHEAD_BYTES)
        place = position - content.begin + HEADER_BYTES
        payload = data[place : place + length]
        stored = int.from_bytes(data[place + length : place + length + 4], "little")
        if stored == masked(google_crc32c.value(payload)):
            return Found(position, length + OVERHEAD_BYTES, payload)
        problem = "a payload whose checksum does not fit"
    else:
        problem = f"a record of {length} bytes; an example has at most {LARGEST_PAYLOAD}"
    budget.left -= length
    end = position + length + OVERHEAD_BYTES
    is_next = end == size
    if size - end >= OVERHEAD_BYTES:
        data = content.has(end, HEADER_BYTES)
        is_next = len(headers(data[end - content.begin :][:HEADER_BYTES], size - end)) > 0
    if is_next:
        return Found(position, length + OVERHEAD_BYTES, None, problem)
    return _gap(content, position, problem, budget)  # bytes are missing or were put in: its end is elsewhere


def _gap(content: Content, position: int, problem: str, budget: _Budget) -> Found:
    """Return the stretch up to the next record whose two checksums fit, or to the end of the file."""
    start, size = position + 1, content.size
    while start + OVERHEAD_BYTES <= size:
        stop = min(size, start + _SEARCH_BYTES)
        count = min(size, stop + HEADER_BYTES - 1) - start
        data = content.has(start, count)
        window = data[start - content.begin : start - content.begin + count]
        for candidate in headers(window, size - start).tolist():
            length = _HEADER.unpack_from(window, candidate)[0]
            begin = start + candidate + HEADER_BYTES
            if length <= LARGEST_PAYLOAD:
                stored = int.from_bytes(content.part(begin + length, 4), "little")
                if stored == masked(content.crc_of(begin, length)):
                    return Found(position, start + candidate - position, None, problem)
            budget.left -= min(length, LARGEST_PAYLOAD) + OVERHEAD_BYTES
            if budget.left < 0:
                return Found(position, size - position, None, f"{problem}, and {GAVE_UP}")
        start = stop
    return Found(position, size - position, None, problem)
