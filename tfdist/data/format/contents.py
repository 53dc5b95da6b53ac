"""Check payloads against a schema, and build the index of a shard."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import example
from tfdist.data.format.picture_decoding import KEPT, Decode, format_of
from tfdist.data.format.record_framing import Content, Found, walk
from tfdist.data.format.schema import FIXED, Schema, indexed_values, texts_of
from tfdist.data.format.shard_index import Index, arrays_of
from tfdist.errors import CorruptDataError

BATCH_RECORDS = 4096
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Rows:
    """The index columns of payloads, with zeros for payloads that do not fit, and their problems."""

    columns: Mapping[str, NDArray[Any]]
    problems: Mapping[int, str]


class Contents:
    def __init__(self, schema: Schema, layout: str, *, strict: bool = False, decode: Decode | None = None) -> None:
        self._schema = schema
        self._layout = layout
        self._strict = strict
        self._decode = decode
        self._template = example.Template(schema) if layout == FIXED else None
        self._texts = texts_of(schema, layout)
        self._values = set(indexed_values(schema, layout))

    def of(self, payloads: Sequence[bytes]) -> Rows:
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

    def _undecodable(self, decode: Decode, payloads: Sequence[bytes], problems: Mapping[int, str]) -> dict[int, str]:
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
            problems[place] = "a record that is not an example of its schema"
        return problems


def batches(found: Iterator[Found]) -> Iterator[list[Found]]:
    """Yield lists of at most 4096 findings, with about 16 MiB of payloads at most."""
    while batch := list(islice(found, 1)):
        size = batch[0].size
        while len(batch) < BATCH_RECORDS and size < BATCH_BYTES and (more := next(found, None)) is not None:
            batch.append(more)
            size += more.size
        yield batch


class Gathered:
    """The arrays of an index, gathered piece by piece."""

    def __init__(self, schema: Schema, layout: str) -> None:
        self._offsets: list[NDArray[np.int64]] = []
        empty = arrays_of(0, schema, layout)
        self._columns: dict[str, list[NDArray[Any]]] = {
            key: [np.zeros(shape, dtype)] for key, (dtype, shape) in empty.items() if key != "offset"
        }

    def add(self, offsets: Any, columns: Any) -> None:
        """Append records: their offsets, and their part of each column."""
        self._offsets.append(np.asarray(offsets, np.int64))
        for key, parts in self._columns.items():
            parts.append(columns[key])

    def index(self, end: int) -> Index:
        offsets = np.concatenate([*self._offsets, np.array([end], np.int64)])
        return Index(offsets, {key: np.concatenate(parts) for key, parts in self._columns.items()})


def index_anew(
    content: Content, name: str, schema: Schema, layout: str, *, examples: int, accept: Callable[[str], None] | None
) -> Index:
    """Build the index of a shard from its records.

    A corrupt record keeps its place, with zeros in the columns, as long as the number of records is right: its checksum
    reveals it when it is read.
    """
    contents, gathered, count = Contents(schema, layout), Gathered(schema, layout), 0
    for batch in batches(walk(content)):
        rows = contents.of([found.payload or b"" for found in batch])
        for place, found in enumerate(batch):
            problem = found.problem or rows.problems.get(place, "")
            if problem:
                said = f"{name}: at byte {found.offset}, where record {count + place} should be, there is {problem}"
                if accept is None:
                    raise CorruptDataError(f"{said}.")
                accept(said)
        gathered.add([found.offset for found in batch], rows.columns)
        count += len(batch)
    if count != examples:
        raise CorruptDataError(
            f"{name} has {count} records or corrupt stretches; the manifest says {examples}. `tfdist data repair` "
            "keeps what is whole.",
            received=count,
            path=name,
        )
    return gathered.index(content.size)
