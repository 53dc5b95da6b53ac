"""Folders named key=value, as in Hive: each key is a column, with one value for all files below the folder.

sales/year=2024/country=de/part-0.parquet       year 2024, country "de"
"""

import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.data.sources.protocol import EVERY, Block, Options, Source, length, spelled
from tfdist.data.sources.stored_columns import column
from tfdist.errors import ConfigError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")

#: key and value, as the folders spell them
Keys = tuple[tuple[str, str], ...]


def key_of(folder: str) -> tuple[str, str] | None:
    """Return the key and the value in a folder's name; None if it has none."""
    key, equals, value = folder.partition("=")
    return (urllib.parse.unquote(key), urllib.parse.unquote(value)) if key and equals else None


def schema_of(partitions: Sequence[Keys], options: Options) -> dict[str, Feature]:
    """Return the features of the keys of all files: int64 where all values are whole numbers, else text."""
    first = [key for key, _ in partitions[0]]
    for keys in partitions:
        names = [key for key, _ in keys]
        if names != first or len(set(names)) < len(names):
            raise ConfigError(
                f"the folders of one file say {_shown(partitions[0])} and those of another {_shown(keys)}; all files "
                "must be under the same keys. Name those that are meant.",
                received=_shown(keys),
            )
    found = {}
    for place, key in enumerate(first):
        values = {keys[place][1] for keys in partitions} - {_NULL}
        feature = Feature("int64" if all(map(_INTEGER.fullmatch, values)) and values else TEXT)
        found[key] = feature
        if key in options.null_masks:
            found[f"{key}_is_null"] = Feature("bool")
    return found


def constants(keys: Keys, schema: Schema, options: Options, where: str) -> dict[str, Any]:
    """Return the value of each key's feature for the examples of one file, for keys in the schema."""
    found: dict[str, Any] = {}
    for key, value in keys:
        is_null = value == _NULL
        if key in schema:
            found[key] = _value(key, schema[key], value, options, where)
        if key in options.null_masks and f"{key}_is_null" in schema:
            found[f"{key}_is_null"] = is_null
    return found


def _value(key: str, feature: Feature, value: str, options: Options, where: str) -> Any:
    given: Any = value
    if value == _NULL:
        if key not in options.null_masks and not {key, EVERY} & options.nulls.keys():
            raise ConfigError(
                f"the folder {key}={_NULL} of {where} says that {key!r} is null; say what replaces it: "
                f"nulls={{{key!r}: ...}} (--null {key}=...).",
                name=key,
                received=None,
            )
        zero = b"" if feature.dtype == TEXT else 0
        given = options.nulls.get(key, options.nulls.get(EVERY, zero))
    return column(key, feature, [spelled(feature, given)], 0, f" of {where}")[0]


class Partitioned:
    """The examples of a file, with the values of its folders' keys."""

    def __init__(self, source: Source, schema: Schema, values: Mapping[str, Any], keys: Keys) -> None:
        self._source, self.schema, self._values = source, schema, dict(values)
        self.columns = [*getattr(source, "columns", source.schema), *values]
        self.count, self.seekable = source.count, source.seekable
        self.sizes: NDArray[np.int64] | None = source.sizes
        self.identity: dict[str, Any] = {**source.identity, "keys": [list(key) for key in keys]}
        self.identifies = source.identifies

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        for block in self._source.blocks(start, stop):
            count = length(block)
            found = {**block}
            for name, value in self._values.items():
                is_text = self.schema[name].dtype == TEXT
                found[name] = [value] * count if is_text else np.full(count, value, self.schema[name].dtype)
            yield {name: found[name] for name in self.schema}


def partitioned(source: Source, schema: Schema, keys: Keys, options: Options, where: str) -> Source:
    twice = [key for key, _ in keys if key in getattr(source, "columns", ())]
    if twice:
        raise ConfigError(
            f"{where} has the column {twice[0]!r}, which its folder says as well. Pass the files by "
            "their names, without a wildcard, or rename the folder.",
            name=twice[0],
        )
    return Partitioned(source, schema, constants(keys, schema, options, where), keys)


def _shown(keys: Iterable[tuple[str, str]]) -> str:
    return "/".join(f"{key}={value}" for key, value in keys) or "nothing"
