"""Records that differ only in their numbers, parsed by NumPy thousands at once.

Other programs promise no layout, but one program mostly writes records in few forms. Records of one form have the same
length, and the same bytes except numbers, which have the same places. A form is derived from one record. A record has
a form only if encoding its values again gives the same bytes; `tf.io.parse_example` parses all others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import example
from tfdist.data.format.aligned_arrays import aligned
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import CorruptDataError

_MOST_FORMS = 32
_LONGEST_VARINT = 10
_Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Form:
    """The places of values in records of one form.

    `row` is such a record, and `constant` has the bits that all of them share, both uint8 ``[length]``. `spans`
    has the first byte and the end of each feature's values. `widths` has the number of bytes of each integer.
    """

    row: NDArray[np.uint8]
    constant: NDArray[np.uint8]
    spans: dict[str, tuple[int, int]]
    widths: dict[str, NDArray[np.int64]]

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask of the payloads, uint8 ``[n, length]``, that have this form."""
        bounds = np.bitwise_and.reduce(rows, axis=0), np.bitwise_or.reduce(rows, axis=0)
        if not any(((bound ^ self.row) & self.constant).any() for bound in bounds):
            return np.ones(len(rows), bool)  # mostly so; a mask of each record takes seven times as long
        return ~np.any((rows ^ self.row) & self.constant, axis=1)

    def column(self, name: str, feature: Feature, rows: NDArray[np.uint8]) -> NDArray[np.generic]:
        """Return a feature of payloads that have this form."""
        begin, end = self.spans[name]
        shape = (len(rows), *(dim or 0 for dim in feature.shape))
        if (widths := self.widths.get(name)) is not None:
            return _integers(rows, begin + np.cumsum(widths) - widths, widths).astype(feature.dtype).reshape(shape)
        part = aligned((len(rows), end - begin), np.uint8)
        part[:] = rows[:, begin:end]
        stored = np.dtype(np.uint8) if feature.dtype == "bool" else np.dtype(feature.dtype).newbyteorder("<")
        return part.reshape(-1).view(stored).reshape(shape).astype(feature.dtype, copy=False)


def _integers(rows: NDArray[np.uint8], begins: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Varints that begin at these places of each row."""
    values = np.zeros((len(rows), len(begins)), np.uint64)
    for place in range(int(widths.max())):
        has = np.flatnonzero(widths > place)
        values[:, has] |= (rows[:, begins[has] + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)


def form_of(schema: Schema, payload: bytes) -> Form | None:
    """Return the form of a record; None if it has none, or does not fit the schema.

    Example:
        >>> schema = Schema({"x": Feature("float32", (2,))})
        >>> form_of(schema, example.joined([example.entry("x", schema["x"], bytes([10, 8]) + bytes(8))])).spans
        {'x': (13, 21)}
    """
    try:
        parsed = example.parse(payload)
        values = {name: example.value(name, schema[name], parsed) for name in parsed}
    except (CorruptDataError, KeyError):
        return None
    if values.keys() != set(schema):
        return None
    row = np.frombuffer(payload, np.uint8)[None]
    forms = (_encoded(schema, values, is_padded=is_padded) for is_padded in (False, True))
    return next((form for form in forms if len(form.row) == len(payload) and form.fits(row).all()), None)


def _encoded(schema: Schema, values: dict[str, Any], *, is_padded: bool) -> Form:
    """The form of these values, with the shortest varints, or with single integers padded as tfdist writes them."""
    spans: dict[str, tuple[int, int]] = {}
    widths: dict[str, NDArray[np.int64]] = {}
    entries = b""
    for name, value in values.items():
        feature = schema[name]
        content, size = example.content_of(feature, value), value.nbytes
        if feature.encoding == "int64":
            packed = content[2:] if is_padded and feature.shape == () else example.varints(value)
            content, size = example.delimited(1, packed), len(packed)
            widths[name] = np.diff(np.flatnonzero(np.frombuffer(packed, np.uint8) < 0x80), prepend=-1)
        entries += example.entry(name, feature, content)
        spans[name] = len(entries) - size, len(entries)  # the values end the entry
    row = np.frombuffer(example.prefix(len(entries)) + entries, np.uint8)
    shift = len(row) - len(entries)
    form = Form(row, np.full(len(row), 0xFF, np.uint8), _moved(spans, shift), widths)
    for name, (begin, end) in form.spans.items():
        form.constant[begin:end] = 0x80 if name in widths else 0  # of an integer, whether another byte follows
        if name in widths:
            lasts = begin + np.cumsum(widths[name]) - 1
            form.constant[lasts[widths[name] == _LONGEST_VARINT]] = 0xFE  # 64 bits end here
    return form


def _moved(spans: dict[str, tuple[int, int]], shift: int) -> dict[str, tuple[int, int]]:
    return {name: (begin + shift, end + shift) for name, (begin, end) in spans.items()}


class Forms:
    """A parser that keeps the first forms that it meets; threads may share one.

    Args:
        schema: features with fixed counts of numbers.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: list[Form] = []

    @property
    def are_few(self) -> bool:
        """There is room for as many forms as were met."""
        return 2 * len(self._known) <= _MOST_FORMS

    def __call__(self, rows: NDArray[np.uint8]) -> tuple[_Columns, NDArray[np.bool_]]:
        """Return the features of payloads, uint8 ``[n, length]``, and a mask of those that were parsed; zeros else."""
        done = np.zeros(len(rows), bool)
        columns: _Columns = {}
        for form in self._forms(rows, done):
            fits = form.fits(rows) & ~done
            if fits.all():
                return self._columns(form, rows), fits
            columns = columns or self.zeros(len(rows))
            for name, column in self._columns(form, rows[fits]).items():
                columns[name][fits] = column
            done |= fits
        return columns or self.zeros(len(rows)), done

    def zeros(self, count: int) -> _Columns:
        """Return the features of ``count`` examples, with zeros."""
        shapes = {name: [dim or 0 for dim in feature.shape] for name, feature in self._schema.items()}
        return {name: np.zeros((count, *shape), self._schema[name].dtype) for name, shape in shapes.items()}

    def _columns(self, form: Form, rows: NDArray[np.uint8]) -> _Columns:
        return {name: form.column(name, feature, rows) for name, feature in self._schema.items()}

    def _forms(self, rows: NDArray[np.uint8], done: NDArray[np.bool_]) -> Iterator[Form]:
        """Yield known forms of this length, then those of records that are not done, while there are such records."""
        for form in list(self._known):
            if len(form.row) == rows.shape[1] and not done.all():
                yield form
        while not done.all() and len(self._known) < _MOST_FORMS:
            found = form_of(self._schema, rows[np.argmin(done)].tobytes())
            if found is None:
                return
            self._known.append(found)
            yield found
