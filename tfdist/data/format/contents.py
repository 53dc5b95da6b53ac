"""Check payloads against a schema, and derive what an index says of them.

Example:
    >>> from tfdist.data.format.schema import Feature
    >>> feature = Feature("int64")
    >>> payload = example.joined([example.entry("y", feature, example.content_of(feature, 7))])
    >>> found = Contents(Schema({"y": feature}), "generic").of([payload, b"dirt"])
    >>> found.columns["value:y"].tolist(), sorted(found.problems)
    ([7, 0], [1])
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import example
from tfdist.data.format.picture_decoding import KEPT, format_of
from tfdist.data.format.record_layout import FIXED, indexed_values
from tfdist.data.format.schema import Schema
from tfdist.data.format.shard_index import arrays_of, texts_of
from tfdist.errors import CorruptDataError


@dataclass(frozen=True)
class Rows:
    """What payloads hold.

    Attributes:
        columns: arrays of an index by their names, without offsets; zeros for payloads that do not fit.
        problems: place in the payloads -> why it is no example of the schema.
    """

    columns: Mapping[str, NDArray[Any]]
    problems: Mapping[int, str]


class Contents:
    """Looks into payloads."""

    def __init__(
        self,
        schema: Schema,
        layout: str,
        *,
        strict: bool = False,
        decode: Callable[[Sequence[bytes]], list[str]] | None = None,
    ) -> None:
        self._schema = schema
        self._layout = layout
        self._strict = strict
        self._decode = decode
        self._template = example.Template(schema) if layout == FIXED else None
        self._texts = texts_of(schema, layout)
        self._values = set(indexed_values(schema, layout))

    def of(self, payloads: Sequence[bytes]) -> Rows:
        """Return what payloads hold, and which are no examples."""
        if self._template is not None:
            return Rows({}, self._unlike(self._template, payloads))
        columns = {
            key: np.zeros(shape, dtype)
            for key, (dtype, shape) in arrays_of(len(payloads), self._schema, self._layout).items()
            if key != "offset"
        }
        problems = {}
        for place, payload in enumerate(payloads):
            try:
                self._put(columns, place, payload)
            except CorruptDataError as error:
                problems[place] = str(error).rstrip(".")
                for column in columns.values():
                    column[place] = 0
        if self._decode is not None:
            problems.update(self._undecodable(self._decode, payloads, problems))
        return Rows(columns, problems)

    def _undecodable(
        self, decode: Callable[[Sequence[bytes]], list[str]], payloads: Sequence[bytes], problems: Mapping[int, str]
    ) -> dict[int, str]:
        places, names, pictures = [], [], []
        for place, payload in enumerate(payloads):
            parsed = example.parse(payload) if place not in problems else {}
            for name, feature in self._schema.items():
                values = parsed[name][1] if feature.encoding == "bytes" and name in parsed else []
                found = [value for value in values if feature.is_image or format_of(value) in KEPT]
                places += [place] * len(found)
                names += [name] * len(found)
                pictures += found
        said = zip(places, names, decode(pictures), strict=True)
        return {place: f"{name!r} {problem}" for place, name, problem in said if problem}

    def _put(self, columns: Mapping[str, NDArray[Any]], place: int, payload: bytes) -> None:
        parsed = example.parse(payload)
        extra = [name for name in parsed.keys() - self._schema.keys() if parsed[name][0]] if self._strict else ()
        if extra:
            raise CorruptDataError(f"it has the feature {min(extra)!r}, which the others have not")
        for name, feature in self._schema.items():
            found = example.value(name, feature, parsed)
            if name in self._values:
                columns[f"value:{name}"][place] = found
        spans = example.extents(payload) if self._texts else {}
        for name in self._texts:
            if name not in spans:
                raise CorruptDataError(f"feature {name!r} has not exactly one value of bytes")
            columns[f"start:{name}"][place], columns[f"size:{name}"][place] = spans[name]

    @staticmethod
    def _unlike(template: example.Template, payloads: Sequence[bytes]) -> dict[int, str]:
        fitting = [place for place, payload in enumerate(payloads) if len(payload) == template.length]
        problems = {
            place: f"a record of {len(payloads[place])} bytes; its schema's have {template.length}"
            for place in set(range(len(payloads))).difference(fitting)
        }
        rows = np.frombuffer(b"".join(payloads[place] for place in fitting), np.uint8)
        fits = template.fits(rows.reshape(len(fitting), template.length))
        for place in np.asarray(fitting, np.int64)[~fits].tolist():
            problems[place] = "a record that is no example of its schema"
        return problems
