"""tf.train.Example on the wire, without TensorFlow, with every value at a known place where the schema allows it.

Features are in the order of their names. A single integer is a varint padded to the bytes that its dtype may need,
which every protocol buffer reader accepts. So all records of a fixed schema differ only in their values (`Template`),
and NumPy writes and reads thousands at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.aligned_arrays import aligned
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import CorruptDataError

_KINDS = {1: "bytes", 2: "float", 3: "int64"}
_FIELD = {"bytes": 1, "raw": 1, "float": 2, "int64": 3}
_WIDTH = {"bool": 1, "uint8": 2, "uint16": 3, "uint32": 5}  # of a varint; negative values take 10, whatever the dtype
_INTEGERS = 3
_LONGEST_VARINT = 10
_MANY_BYTES = 256  # of a list of integers
_NO_LIST: tuple[str, list[Any]] = ("", [])


def width_of(dtype: str) -> int:
    return _WIDTH.get(dtype, _LONGEST_VARINT)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def varints(values: Any) -> bytes:
    """The shortest varints of integers, one after the other; negative ones as 64-bit two's complement."""
    unsigned = np.asarray(values).astype(np.int64).view(np.uint64).reshape(-1)
    groups = (unsigned[:, None] >> (np.uint64(7) * np.arange(_LONGEST_VARINT, dtype=np.uint64))).astype(np.uint8) & 0x7F
    used = np.maximum(_LONGEST_VARINT - np.argmax(groups[:, ::-1] != 0, axis=1), 1)
    used[~groups.any(axis=1)] = 1
    place = np.arange(_LONGEST_VARINT)
    groups |= np.where(place < used[:, None] - 1, 0x80, 0).astype(np.uint8)
    return groups[place < used[:, None]].tobytes()


def delimited(field: int, content: bytes) -> bytes:
    """A field with its length: a message, bytes or packed values."""
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def entry(name: str, feature: Feature, content: bytes) -> bytes:
    listed = delimited(_FIELD[feature.encoding], content)
    return delimited(1, delimited(1, name.encode()) + delimited(2, listed))


def text_prefix(name: str, size: int) -> bytes:
    """Return the bytes that precede a feature's single text of ``size`` bytes; the text ends the feature's entry."""
    field = b"\x0a" + varint(size)
    listed = b"\x0a" + varint(len(field) + size) + field
    value = b"\x12" + varint(len(listed) + size) + listed
    key = delimited(1, name.encode())
    return b"\x0a" + varint(len(key) + len(value) + size) + key + value


def content_of(feature: Feature, value: Any) -> bytes:
    """The content of a feature's list for one value: bytes, text, or an array that fits the feature."""
    if feature.encoding == "bytes":
        items = [value] if feature.shape == () else np.asarray(value, dtype=object).reshape(-1).tolist()
        return b"".join(delimited(1, as_bytes(item)) for item in items)
    array = np.ascontiguousarray(value, dtype=np.dtype(feature.dtype).newbyteorder("<"))
    if feature.encoding == "raw":
        return delimited(1, array.tobytes())
    if feature.encoding == "float":
        packed = array.tobytes()
    elif feature.shape == ():
        packed = _padded(np.reshape(array, (1,)), width_of(feature.dtype)).tobytes()
    else:
        packed = varints(array) if array.size else b""
    return delimited(1, packed) if packed else b""


def as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(value)


def _padded(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Varints of ``width`` bytes, uint8 ``[n, width]``."""
    unsigned = values.astype(np.int64).view(np.uint64).reshape(-1)
    groups = np.full((len(unsigned), width), 0x80, np.uint8)
    groups[:, -1] = 0
    used = -(-int(unsigned.max(initial=0)).bit_length() // 7)  # most labels have one group that is not padding
    for place in range(used):
        groups[:, place] |= (unsigned >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(0x7F)
    return groups


class Template:
    """The record of a schema in which every value has its place.

    `slots` maps each name to the first byte and the number of bytes of its values; the `entry_bytes` end the payload.
    """

    def __init__(self, schema: Schema) -> None:
        assert schema.is_fixed
        self.schema = schema
        entries = b""
        places: dict[str, tuple[int, int]] = {}
        for name, feature in schema.items():
            content = content_of(feature, np.zeros([dim or 0 for dim in feature.shape], feature.dtype))
            entries += entry(name, feature, content)
            size = _slot_bytes(feature)
            places[name] = (len(entries) - size, size)  # the values end the entry
        message = delimited(1, entries)
        shift = len(message) - len(entries)
        self.slots = {name: (begin + shift, size) for name, (begin, size) in places.items()}
        self.length = len(message)
        self.entry_bytes = len(entries)
        self._row = np.frombuffer(message, np.uint8)
        self._constant = np.full(self.length, 0xFF, np.uint8)  # the bits that are the same in all records
        for name, (begin, size) in self.slots.items():
            is_varint = schema[name].encoding == "int64"  # its bytes say that another follows, up to the last
            self._constant[begin : begin + size] = 0x80 if is_varint else 0

    def encode(self, columns: Mapping[str, Any], count: int) -> NDArray[np.uint8]:
        """The payloads of ``count`` examples, uint8 ``[count, length]``, from arrays that fit the schema."""
        rows = np.empty((count, self.length), np.uint8)
        rows[:] = self._row
        for name, feature in self.schema.items():
            begin, size = self.slots[name]
            values = np.ascontiguousarray(columns[name], dtype=np.dtype(feature.dtype).newbyteorder("<"))
            if feature.encoding == "int64":
                rows[:, begin : begin + size] = _padded(values, size)
            elif size:
                rows[:, begin : begin + size] = values.reshape(count, -1).view(np.uint8).reshape(count, size)
        return rows

    def decode(self, rows: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return {name: self.column(name, rows) for name in self.schema}

    def column(self, name: str, rows: NDArray[np.uint8]) -> NDArray[Any]:
        feature, (begin, size) = self.schema[name], self.slots[name]
        part = rows[:, begin : begin + size]
        shape = (len(rows), *(dim or 0 for dim in feature.shape))
        if feature.encoding == "int64":
            values = np.zeros(len(rows), np.uint64)
            for place in range(size):
                values |= (part[:, place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
            return values.view(np.int64).astype(feature.dtype)
        found = aligned((len(rows), size), np.uint8)
        found[:] = part
        stored = np.dtype(feature.dtype).newbyteorder("<")
        return found.reshape(-1).view(stored).reshape(shape).astype(feature.dtype, copy=False)

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask of the payloads, uint8 ``[count, length]``, that differ from the template only in values."""
        if rows.shape[1] != self.length:
            return np.zeros(len(rows), bool)
        return ~np.any((rows ^ self._row) & self._constant, axis=1)


def template_bytes(schema: Schema) -> int:
    """Return the length of a fixed schema's payload without making one: an untrusted schema may ask for any."""
    entries = 0
    for name, feature in schema.items():
        content = _slot_bytes(feature)
        if content or feature.encoding == "raw":
            content = _delimited_bytes(content)
        value = _delimited_bytes(_delimited_bytes(content))
        entries += _delimited_bytes(_delimited_bytes(len(name.encode())) + value)
    return _delimited_bytes(entries)


def _delimited_bytes(size: int) -> int:
    return 1 + len(varint(size)) + size


def _slot_bytes(feature: Feature) -> int:
    if feature.encoding == "int64":
        return width_of(feature.dtype)
    return (feature.size or 0) * np.dtype(feature.dtype).itemsize


def parse(payload: bytes) -> dict[str, tuple[str, list[Any]]]:
    """An example's features: name -> (kind, values); kind is bytes, float, int64, or empty for no list."""
    try:
        return dict(_feature(payload, item) for item in _items(payload, 1))
    except (IndexError, ValueError) as error:
        raise CorruptDataError(f"a record of {len(payload)} bytes is no tf.train.Example: {error}.") from error


def sequences(payload: bytes) -> dict[str, list[tuple[str, list[Any]]]]:
    """The feature lists of a tf.train.SequenceExample: name -> (kind, values) of each step; `parse` has its context."""
    try:
        found: dict[str, list[tuple[str, list[Any]]]] = {}
        for item in _items(payload, 2):
            parts = {key: span for key, span, _ in _fields(payload, *item)}
            name = payload[slice(*parts[1])].decode() if 1 in parts else ""
            steps = _fields(payload, *parts[2]) if 2 in parts else ()
            found[name] = [_kind_and_values(payload, span) for key, span, _ in steps if key == 1]
        return found
    except (IndexError, ValueError) as error:
        raise CorruptDataError(f"a record of {len(payload)} bytes is no tf.train.SequenceExample: {error}.") from error


def lists_examples(payload: bytes) -> bool:
    """A record is an ExampleListWithContext: examples in field 1, and their context in field 2.

    Read as an example or a sequence, it has features with names and no values, and each name is a whole feature.
    """
    try:
        message = _spans(payload, (0, len(payload)))
        features = _spans(payload, message.get(1, message.get(2, (0, 0)))).get(1, (0, 0))
        inner = _spans(payload, features)  # of an example: the name and the value of its first feature
        return 2 not in inner and _spans(payload, inner.get(1, (0, 0))).keys() == {1, 2}
    except (IndexError, ValueError):
        return False


def _spans(payload: bytes, span: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """Return the span of the first field of each number in a message."""
    found: dict[int, tuple[int, int]] = {}
    for number, inner, _ in _fields(payload, *span):
        found.setdefault(number, inner)
    return found


def extents(payload: bytes) -> dict[str, tuple[int, int]]:
    """First byte and length of each feature that has exactly one value of bytes."""
    found = {}
    for item in _items(payload, 1):
        parts = {key: span for key, span, _ in _fields(payload, *item)}
        for kind, span, _ in _fields(payload, *parts[2]) if {1, 2} <= set(parts) else ():
            values = list(_fields(payload, *span)) if kind == 1 else []
            if len(values) == 1:
                begin, end = values[0][1]
                found[payload[slice(*parts[1])].decode()] = (begin, end - begin)
    return found


def _items(payload: bytes, field: int) -> Iterator[tuple[int, int]]:
    """Yield the span of each feature of an example (field 1), or of each feature list of a sequence (field 2)."""
    for number, features, _ in _fields(payload, 0, len(payload)):
        for inner, item, _ in _fields(payload, *features) if number == field else ():
            if inner == 1:
                yield item


def _feature(payload: bytes, item: tuple[int, int]) -> tuple[str, tuple[str, list[Any]]]:
    name, value = "", _NO_LIST
    for number, span, _ in _fields(payload, *item):
        if number == 1:
            name = payload[slice(*span)].decode()
        elif number == 2:
            value = _kind_and_values(payload, span)
    return name, value


def _kind_and_values(payload: bytes, span: tuple[int, int]) -> tuple[str, list[Any]]:
    value = _NO_LIST
    for kind, listed, _ in _fields(payload, *span):
        if kind in _KINDS:
            value = (_KINDS[kind], list(_values(payload, _KINDS[kind], listed)))
    return value


def _values(payload: bytes, kind: str, span: tuple[int, int]) -> Iterator[Any]:
    for number, inner, scalar in _fields(payload, *span):
        if number != 1:
            continue
        if kind == "bytes":
            yield payload[slice(*inner)]
        elif kind == "float":
            if (inner[1] - inner[0]) % 4:
                raise ValueError("a list of floats has a part of one")
            yield from np.frombuffer(payload[slice(*inner)], "<f4").tolist()
        elif scalar is not None:
            yield _signed(scalar)
        elif inner[1] - inner[0] >= _MANY_BYTES:
            yield from _packed(payload[slice(*inner)], inner[0]).tolist()
        else:
            begin = inner[0]
            while begin < inner[1]:
                value, begin = _read_varint(payload, begin, inner[1])
                yield _signed(value)


def _packed(data: bytes, begin: int) -> NDArray[np.int64]:
    """Return the integers of long lists, all at once."""
    parts = np.frombuffer(data, np.uint8)
    lasts = np.flatnonzero(parts < 0x80)
    firsts = np.concatenate([[0], lasts + 1])
    widths = np.diff(np.append(firsts, len(parts) + (firsts[-1] < len(parts)) * _LONGEST_VARINT))
    if (long := np.flatnonzero(widths > _LONGEST_VARINT)).size:
        raise ValueError(f"byte {begin + int(firsts[long[0]])} begins a number without an end")
    firsts, widths = firsts[: len(lasts)], widths[: len(lasts)]
    values = (parts[firsts] & np.uint8(0x7F)).astype(np.uint64)
    for place in range(1, int(widths.max(initial=0))):
        has = np.flatnonzero(widths > place)
        values[has] |= (parts[firsts[has] + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)


def integer_lists(payloads: Sequence[bytes], name: str) -> list[NDArray[np.int64] | None]:
    """A list of integers in each of several examples, decoded together; None where `parse` must decode it."""
    parts = [_packed_part(payload, name) for payload in payloads]
    data = b"".join(parts)
    try:
        values = _packed(data, 0)
    except ValueError:
        return [None] * len(payloads)
    lasts = np.flatnonzero(np.frombuffer(data, np.uint8) < 0x80)
    ends = np.searchsorted(lasts, np.cumsum([len(part) for part in parts]))
    found = zip(parts, np.split(values, ends[:-1]), strict=True)
    return [value if part else None for part, value in found]


def _packed_part(payload: bytes, name: str) -> bytes:
    """The packed integers of a feature; nothing unless they are whole, and in one piece."""
    key, found = name.encode(), b""
    try:
        for item in _items(payload, 1):
            parts = _spans(payload, item)
            if payload[slice(*parts.get(1, (0, 0)))] == key and 2 in parts:
                kinds = list(_fields(payload, *parts[2]))
                if found or len(kinds) != 1 or kinds[0][0] != _INTEGERS:
                    return b""
                listed = list(_fields(payload, *kinds[0][1]))
                if len(listed) != 1 or listed[0][0] != 1 or listed[0][2] is not None:
                    return b""
                found = payload[slice(*listed[0][1])]
    except (IndexError, ValueError):
        return b""
    return found if found and found[-1] < 0x80 else b""


def _fields(payload: bytes, begin: int, end: int) -> Iterator[tuple[int, tuple[int, int], int | None]]:
    """Yield number, span of the content, and the value of a varint, for each field of a message."""
    while begin < end:
        tag, begin = _read_varint(payload, begin, end)
        kind, value = tag & 7, None
        if kind == 2:
            size, begin = _read_varint(payload, begin, end)
        elif kind == 0:
            after = _read_varint(payload, begin, end)
            value, size = after[0], after[1] - begin
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"byte {begin} has a field of the unknown type {kind}")
        if size > end - begin:
            raise ValueError(f"a field at byte {begin} goes beyond its message")
        yield tag >> 3, (begin, begin + size), value
        begin += size


def _read_varint(payload: bytes, begin: int, end: int) -> tuple[int, int]:
    value = 0
    for place in range(min(_LONGEST_VARINT, end - begin)):
        byte = payload[begin + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (1 << 64) - 1, begin + place + 1
    raise ValueError(f"byte {begin} begins a number without an end")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def prefix(size: int) -> bytes:
    """Return the bytes that precede the entries of an example, which have ``size`` bytes together."""
    return b"\x0a" + varint(size)


def joined(parts: Sequence[bytes]) -> bytes:
    entries = b"".join(parts)
    return prefix(len(entries)) + entries


def value(name: str, feature: Feature, parsed: Mapping[str, tuple[str, list[Any]]]) -> Any:
    """The value of a feature in a parsed example: bytes, an array of bytes, or an array of its dtype."""
    kind, items = parsed.get(name, _NO_LIST)
    wanted = "bytes" if feature.encoding in ("bytes", "raw") else feature.encoding
    count = 1 if feature.encoding == "raw" else feature.size
    if (kind or wanted) != wanted or (count is not None and len(items) != count):
        raise CorruptDataError(
            f"feature {name!r} has {len(items)} values of {kind or 'nothing'}; it must have "
            f"{'any number' if count is None else count} of {wanted}.",
            name=name,
            received=len(items),
        )
    if feature.encoding == "bytes":
        if feature.shape == ():
            return items[0]
        return np.array([*items, None], dtype=object)[:-1].reshape(feature.shape if count is not None else (-1,))
    dtype = np.dtype(feature.dtype)
    shape = tuple(-1 if dim is None else dim for dim in feature.shape)
    if feature.encoding == "raw":
        size = len(items[0])
        if size % dtype.itemsize if feature.size is None else size != feature.size * dtype.itemsize:
            raise CorruptDataError(
                f"feature {name!r} has {size} bytes, which are not {feature}.", name=name, received=size
            )
        array = np.frombuffer(items[0], dtype.newbyteorder("<"))
    else:
        array = np.array(items, np.float32 if feature.encoding == "float" else np.int64)
    found = array.astype(dtype)
    if feature.encoding == "int64" and (wrong := array[found != array]).size:
        raise CorruptDataError(
            f"feature {name!r} has {wrong[0]}, which is no {feature.dtype}.", name=name, received=wrong[0]
        )
    return found.reshape(shape)
