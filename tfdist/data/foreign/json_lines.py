"""Files with a JSON object in each line."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign
from tfdist.data.foreign.kept_index import kept_places
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.data.sources.stored_columns import column, inferred_feature
from tfdist.errors import ConfigError, TfdistError

_SAMPLE = 256
_STEP = 64 << 20  # bytes
_Ids = NDArray[np.int64]


class JsonLines(Foreign):
    """The lines of JSON files, found by one pass; types are inferred from the first lines and a sample of all."""

    def __init__(self, files: Files) -> None:
        self._places = kept_places(files, _offsets)
        super().__init__(files, self._places.shards(files))

    def _schema(self) -> Schema:
        count = int(self.begins[-1])
        ids = np.unique(np.concatenate([np.arange(min(count, _SAMPLE)), np.linspace(0, count - 1, _SAMPLE)]))
        rows = self._rows(ids.astype(np.int64))
        found = {}
        for name in rows[0]:
            values = [row[name] for row in rows if name in row]
            if any(isinstance(value, dict) or value is None for value in values):
                raise ConfigError(
                    f"feature {name!r} of {self.files.storage.url} is an object or null in some line; it must be a "
                    "number, a text or a list. Parquet can have both: `tfdist data write` reads it with --null.",
                    name=name,
                )
            found[name] = _feature(name, values)
        return Schema(found)

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        rows = self._rows(ids)
        found: Columns = {}
        for name in names:
            for number, row in zip(ids.tolist(), rows, strict=True):
                if name not in row or len(row) != len(self.schema):
                    raise self.bad(number, f"it has {', '.join(map(repr, row))}; there must be {list(self.schema)}.")
            try:
                found[name] = column(name, self.schema[name], [row[name] for row in rows], int(ids[0]))
            except TfdistError as error:
                if len(ids) > 1:  # to name the line
                    for number in ids.tolist():
                        self.columns(np.array([number]), [name])
                raise self.bad(int(ids[0]), str(error)) from error
        return found

    def _rows(self, ids: _Ids) -> list[dict[str, Any]]:
        found = []
        for number, line in zip(ids.tolist(), self.bytes_at(ids, *self._places(ids)), strict=True):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self.bad(number, f"it is not JSON ({error}).") from None
            if not isinstance(row, dict):
                raise self.bad(number, f"it is {line[:20]!r}; it must be an object.")
            found.append(row)
        return found


def _offsets(files: Files, number: int) -> _Ids:
    """Return the first byte of each line that is not blank, and the end of the file."""
    content = files.maps[number]
    parts = [np.flatnonzero(content[at : at + _STEP] == ord("\n")) + at for at in range(0, len(content), _STEP)]
    breaks = np.concatenate([*parts, np.zeros(0, np.int64)]).astype(np.int64)
    begins = np.concatenate([[0], breaks + 1]).astype(np.int64)
    ends = np.append(breaks, len(content)).astype(np.int64)
    is_line = ends - begins > 2
    short = np.flatnonzero(~is_line)
    is_line[short] = [bool(content[begins[place] : ends[place]].tobytes().strip()) for place in short.tolist()]
    return np.append(begins[is_line], len(content))


def _feature(name: str, values: list[Any]) -> Feature:
    lists = [value for value in values if isinstance(value, list)]
    if len({len(value) for value in lists}) < 2:
        return inferred_feature(name, values)
    flat = [item for value in lists for item in value]
    inner = inferred_feature(name, flat[:_SAMPLE]) if flat else Feature("float32")
    return Feature(TEXT, (None,)) if inner.dtype == TEXT else Feature(inner.dtype, (None,))
