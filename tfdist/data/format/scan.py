"""Scan a possibly damaged file of records: records with valid checksums, and the gaps between them.

A file is read once, from its beginning to its end, a window of it at a time.

Example:
    >>> import tempfile
    >>> from tfdist.data.format import record_framing
    >>> from tfdist.storage.directory import storage
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = storage(folder)
    ...     with place.create("a.tfrecord") as file:
    ...         _ = file.write(record_framing.frame(b"one") + b"dirt" + record_framing.frame(b"two"))
    ...     [(found.offset, found.size, found.payload) for found in walk(Content(place, "a.tfrecord"))]
    [(0, 19, b'one'), (19, 4, None), (23, 19, b'two')]
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c

from tfdist.data.format import record_framing
from tfdist.errors import ShortReadError
from tfdist.storage.directory import Storage

WINDOW_BYTES = 8 << 20
#: more has no tf.train.Example: a protocol buffer ends here
LARGEST_PAYLOAD = (1 << 31) - 1
_HEADER = struct.Struct("<QI")
_SEARCH_BYTES = 1 << 20

GAVE_UP = "so much that is corrupt that the rest was not searched"


class Found(NamedTuple):
    """A record, or a stretch that holds none.

    Attributes:
        offset: its first byte in the file.
        size: its bytes, with the frame.
        payload: of a record whose checksums fit, else None.
        problem: what stands there instead; empty for a record.
    """

    offset: int
    size: int
    payload: bytes | None
    problem: str = ""


class Content:
    """A file of a storage, read through a window; its checksum comes along."""

    def __init__(
        self, place: Storage, name: str, *, window: int = WINDOW_BYTES, seen: Callable[[int], None] | None = None
    ) -> None:
        self._place = place
        self._name = name
        self._window = window
        self._seen = seen
        self.size = place.size(name)
        self.data = b""
        self.begin = 0  # of the window in the file
        self._crc = 0
        self._summed = 0  # bytes that are in the checksum

    def has(self, offset: int, size: int) -> bytes:
        """Return the window, once it holds these bytes, which are in the file.

        Their place in it is ``offset - begin``.
        """
        if not self.begin <= offset <= offset + size <= self.begin + len(self.data):
            self.data = self._read(offset, max(size, self._window))
            self.begin = offset
        return self.data

    def part(self, offset: int, size: int) -> bytes:
        """Return a few bytes, wherever the window is."""
        place = offset - self.begin
        if place >= 0 and place + size <= len(self.data):
            return self.data[place : place + size]
        return self._read(offset, size)

    def crc_of(self, offset: int, size: int) -> int:
        """Return the CRC-32C of a stretch, of which no more than a window is in memory."""
        if self.begin <= offset <= offset + size <= self.begin + len(self.data):
            return int(google_crc32c.value(self.data[offset - self.begin : offset - self.begin + size]))
        crc, end = 0, offset + size
        while offset < end:
            part = self._read(offset, min(self._window, end - offset))
            crc = google_crc32c.extend(crc, part)
            offset += len(part)
        return int(crc)

    def crc(self) -> int:
        """Return the CRC-32C of the whole file, as the manifest has it; what was not read yet is read."""
        while self._summed < self.size:
            self._read(self._summed, self._window)
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
    """Yield everything in a file in its order, without a gap: records, and stretches that hold none.

    A header that does not fit hides its record; reading goes on where the next whole record begins. A file that was
    made to cost time costs no more than a few times what reading it costs: then the rest is one stretch.
    """
    position, size, budget = 0, content.size, _Budget(2 * content.size + (1 << 20))
    while position < size:
        found = _next(content, position, budget)
        yield found
        position = found.offset + found.size


class _Budget:
    """Bytes that may still be looked at in vain."""

    def __init__(self, left: int) -> None:
        self.left = left


def _next(content: Content, position: int, budget: _Budget) -> Found:
    size, left = content.size, content.size - position
    if left < record_framing.OVERHEAD_BYTES:
        return Found(position, left, None, f"{left} bytes, too few for a record")
    data = content.has(position, record_framing.HEADER_BYTES)
    place = position - content.begin
    length, crc = _HEADER.unpack_from(data, place)
    if crc != record_framing.masked(google_crc32c.value(data[place : place + 8])):
        return _gap(content, position, "a header whose checksum does not fit", budget)
    if length > left - record_framing.OVERHEAD_BYTES:
        return _gap(content, position, f"a record of {length} bytes, which goes beyond the end of the file", budget)
    if length <= LARGEST_PAYLOAD:
        data = content.has(position, length + record_framing.OVERHEAD_BYTES)
        place = position - content.begin + record_framing.HEADER_BYTES
        payload = data[place : place + length]
        stored = int.from_bytes(data[place + length : place + length + 4], "little")
        if stored == record_framing.masked(google_crc32c.value(payload)):
            return Found(position, length + record_framing.OVERHEAD_BYTES, payload)
        problem = "a payload whose checksum does not fit"
    else:
        problem = f"a record of {length} bytes; an example has at most {LARGEST_PAYLOAD}"
    budget.left -= length
    end = position + length + record_framing.OVERHEAD_BYTES
    if end == size or _is_header(content, end):
        return Found(position, length + record_framing.OVERHEAD_BYTES, None, problem)
    return _gap(content, position, problem, budget)  # bytes are missing or were put in: its end is elsewhere


def _is_header(content: Content, position: int) -> bool:
    room = content.size - position
    if room < record_framing.OVERHEAD_BYTES:
        return False
    data = content.has(position, record_framing.HEADER_BYTES)
    place = position - content.begin
    return bool(len(record_framing.headers(data[place : place + record_framing.HEADER_BYTES], room)))


def _gap(content: Content, position: int, problem: str, budget: _Budget) -> Found:
    """Return the stretch up to the next record whose two checksums fit, or to the end of the file."""
    start, size = position + 1, content.size
    while start + record_framing.OVERHEAD_BYTES <= size:
        stop = min(size, start + _SEARCH_BYTES)
        count = min(size, stop + record_framing.HEADER_BYTES - 1) - start
        data = content.has(start, count)
        window = data[start - content.begin : start - content.begin + count]
        for candidate in record_framing.headers(window, size - start).tolist():
            length = _HEADER.unpack_from(window, candidate)[0]
            begin = start + candidate + record_framing.HEADER_BYTES
            if length <= LARGEST_PAYLOAD:
                stored = int.from_bytes(content.part(begin + length, 4), "little")
                if stored == record_framing.masked(content.crc_of(begin, length)):
                    return Found(position, start + candidate - position, None, problem)
            budget.left -= min(length, LARGEST_PAYLOAD) + record_framing.OVERHEAD_BYTES
            if budget.left < 0:
                return Found(position, size - position, None, f"{problem}, and {GAVE_UP}")
        start = stop
    return Found(position, size - position, None, problem)
