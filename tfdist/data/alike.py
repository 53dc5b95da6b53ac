"""Records that are alike but for their values, parsed by NumPy thousands at once.

Files of other programs promise no layout, but one writer writes one schema in few forms: records of one form have the
same length, and the same bytes but for numbers that stand at the same places. A form is read off one record, byte by
byte; whatever is not what `tf.train.Example` plainly says has none and is left to `tf.io.parse_example`.

Example:
    >>> from tfdist.data.example import entry, joined, content_of
    >>> feature = Feature("float32", (2,))
    >>> payloads = [joined([entry("x", feature, content_of(feature, [i, 0.5]))]) for i in range(3)]
    >>> columns, parsed = Forms(Schema({"x": feature}))(np.array([list(payload) for payload in payloads], np.uint8))
    >>> columns["x"].tolist(), parsed.tolist()
    ([[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]], [True, True, True])
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.schema import Feature, Schema

_LIST = {"raw": 0x0A, "float": 0x12, "int64": 0x1A}  # the tag of a feature's list: field 1, 2 or 3, with a length
_FIRST, _SECOND = 0x0A, 0x12  # the tags of a message's fields 1 and 2, with a length
_LONGEST_SIZE = 4  # bytes of a length; it may be padded to ten
_LONGEST_VARINT = 10
_MOST_FORMS = 32
_MOST_BYTES = 1 << 20  # of an example's values: a stranger's schema may have any number


class _StrangeError(ValueError):
    """The record may be right, but has no form."""


@dataclass(frozen=True)
class Form:
    """Where values stand in records of one form.

    Attributes:
        row: one of them, uint8 ``[length]``.
        constant: the bits that all have in common, uint8 ``[length]``.
        numbers: feature of floats or bytes -> (first byte, number of bytes).
        varints: feature of integers -> first byte of each value and the end of the last, int64 ``[values + 1]``.
    """

    row: NDArray[np.uint8]
    constant: NDArray[np.uint8]
    numbers: dict[str, tuple[int, int]]
    varints: dict[str, NDArray[np.int64]]

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which payloads of this length have the form."""
        places = np.flatnonzero(self.constant)
        return ~np.any((rows[:, places] ^ self.row[places]) & self.constant[places], axis=1)

    def column(self, name: str, feature: Feature, rows: NDArray[np.uint8]) -> NDArray[Any]:
        """Return a feature of payloads that have the form."""
        shape = (len(rows), *(dim or 0 for dim in feature.shape))
        if name in self.varints:
            ends = self.varints[name]
            begins, places = ends[:-1] - ends[0], np.arange(ends[0], ends[-1])
            shifts = 7 * (places - np.repeat(ends[:-1], np.diff(ends)))
            groups = (rows[:, places] & np.uint8(0x7F)).astype(np.uint64) << shifts.astype(np.uint64)
            values = np.bitwise_or.reduceat(groups, begins, axis=1).view(np.int64)
            return values.astype(feature.dtype).reshape(shape)
        begin, size = self.numbers[name]
        stored = np.dtype(feature.dtype).newbyteorder("<") if feature.dtype != "bool" else np.dtype(np.uint8)
        return np.ascontiguousarray(rows[:, begin : begin + size]).view(stored).astype(feature.dtype).reshape(shape)


def has_forms(schema: Schema) -> bool:
    """Return whether records of a schema can be alike: of each feature as many numbers, and of all not very many.

    Example:
        >>> has_forms(Schema({"x": Feature("float32", (2,))})), has_forms(Schema({"x": Feature("string")}))
        (True, False)
    """
    sizes = [feature.size for feature in schema.values() if feature.encoding != "bytes"]
    return len(sizes) == len(schema) and all(sizes) and 8 * sum(size or 0 for size in sizes) <= _MOST_BYTES


def form_of(schema: Schema, payload: bytes) -> Form | None:
    """Return the form of one record; None where it has none, or is no example of the schema."""
    try:
        return _form_of(schema, payload)
    except _StrangeError:
        return None


def _form_of(schema: Schema, payload: bytes) -> Form:
    constant = np.full(len(payload), 0xFF, np.uint8)
    numbers: dict[str, tuple[int, int]] = {}
    varints: dict[str, NDArray[np.int64]] = {}
    at, end = _content(payload, _FIRST, 0, len(payload), ends=True)  # the one field of an example
    while at < end:
        entry, at = _content(payload, _FIRST, at, end)
        key = _content(payload, _FIRST, entry, at)
        name = payload[slice(*key)].decode(errors="replace")
        feature = schema.get(name)
        if feature is None or name in numbers or name in varints:
            raise _StrangeError
        values = _content(payload, _SECOND, key[1], at, ends=True)
        listed = _content(payload, _LIST[feature.encoding], *values, ends=True)
        begin, stop = _content(payload, _FIRST, *listed, ends=True)  # packed, or the one value of bytes
        if feature.encoding == "int64":
            varints[name] = ends = _varint_ends(payload, begin, stop)
            constant[begin:stop] = 0x80  # whether another byte follows
            tenth = ends[1:][np.diff(ends) == _LONGEST_VARINT] - 1
            constant[tenth] = 0xFE  # of which one bit is the 64th, and no other may be set
            if len(ends) - 1 != feature.size or any(payload[place] > 1 for place in tenth.tolist()):
                raise _StrangeError
        else:
            numbers[name] = (begin, stop - begin)
            constant[begin:stop] = 0
            if stop - begin != (feature.size or 0) * np.dtype(feature.dtype).itemsize:
                raise _StrangeError
    if len(numbers) + len(varints) != len(schema):
        raise _StrangeError
    return Form(np.frombuffer(payload, np.uint8), constant, numbers, varints)


def _content(payload: bytes, tag: int, at: int, end: int, *, ends: bool = False) -> tuple[int, int]:
    """Return where the content of a field stands that begins at ``at``, and fills what is left if it ``ends`` that."""
    if at >= end or payload[at] != tag:
        raise _StrangeError
    at, size, shift = at + 1, 0, 0
    while True:
        if at >= end or shift == 7 * _LONGEST_SIZE:
            raise _StrangeError
        size |= (payload[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if payload[at - 1] < 0x80:
            break
    if size > end - at or (ends and size != end - at):
        raise _StrangeError
    return at, at + size


def _varint_ends(payload: bytes, begin: int, end: int) -> NDArray[np.int64]:
    """Return where the first of packed varints begins, and where each ends."""
    last = np.flatnonzero(np.frombuffer(payload, np.uint8)[begin:end] < 0x80)
    ends = np.concatenate([[0], last + 1]) + begin
    if ends[-1] != end or (np.diff(ends) > _LONGEST_VARINT).any():
        raise _StrangeError
    return np.asarray(ends, np.int64)


class Forms:
    """Parses records by the forms that it has met, and remembers new ones, up to a few.

    Args:
        schema: `has_forms`.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: list[Form] = []

    def __call__(self, rows: NDArray[np.uint8]) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Return the features of payloads of one length, uint8 ``[n, length]``, and which were parsed; zeros else."""
        parsed = np.zeros(len(rows), bool)
        columns = None
        for form in self._forms(rows, parsed):
            fits = form.fits(rows) & ~parsed
            if fits.all():  # nearly always: nothing is copied
                return self._columns(form, rows), fits
            columns = columns or self.zeros(len(rows))
            for name, column in self._columns(form, rows[fits]).items():
                columns[name][fits] = column
            parsed |= fits
        return columns or self.zeros(len(rows)), parsed

    def zeros(self, count: int) -> dict[str, NDArray[Any]]:
        """Return features of ``count`` examples, all zeros."""
        shapes = {name: [dim or 0 for dim in feature.shape] for name, feature in self._schema.items()}
        return {name: np.zeros((count, *shape), self._schema[name].dtype) for name, shape in shapes.items()}

    def _columns(self, form: Form, rows: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return {name: form.column(name, feature, rows) for name, feature in self._schema.items()}

    def _forms(self, rows: NDArray[np.uint8], parsed: NDArray[np.bool_]) -> Iterator[Form]:
        """Yield forms of this length as long as rows are not parsed: those that are known, then those of such rows."""
        for form in list(self._known):
            if len(form.row) == rows.shape[1] and not parsed.all():
                yield form
        while not parsed.all() and len(self._known) < _MOST_FORMS:
            found = form_of(self._schema, rows[np.argmin(parsed)].tobytes())
            if found is None:
                return
            self._known.append(found)
            yield found
