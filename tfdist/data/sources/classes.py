"""Classes of several origins under one list of names: numbers are changed, so that each name has one.

Example:
    >>> numbers_of(("cat", "owl"), ("cat", "dog", "owl"), "label", "a folder").tolist()
    [0, 2]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import Schema
from tfdist.data.sources.protocol import Block, Source
from tfdist.errors import ConfigError


def named(schema: Schema, origins: Sequence[Schema]) -> Schema:
    """Return a schema whose features have names, where it has none and an origin of the examples has some."""
    found = dict(schema)
    for name, feature in schema.items():
        known = [origin[name].names for origin in origins if name in origin and origin[name].names]
        if known and not feature.names:
            found[name] = replace(feature, names=known[0])
    return Schema(found)


def matched(source: Source, own: Schema | None, where: str) -> Source:
    """Return a source whose classes have the numbers of its schema."""
    tables = {
        name: numbers_of(own[name].names, feature.names, name, where)
        for name, feature in source.schema.items()
        if own is not None and name in own and own[name].names and own[name].names != feature.names
    }
    for name, table in tables.items():
        dtype = source.schema[name].dtype
        if np.iinfo(dtype if dtype != "bool" else "uint8").max < table.max() or (dtype == "bool" and table.max() > 1):
            raise ConfigError(
                f"{name!r} is {dtype}, which has no room for {table.max() + 1} classes; pass a wider one."
            )
    return Renumbered(source, tables, where) if tables else source


def numbers_of(own: Sequence[str], names: Sequence[str], feature: str, where: str) -> NDArray[np.int64]:
    """Return the number that each class of an origin gets."""
    for name in own:
        if name not in names:
            listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ConfigError(
                f"{where} has the class {name!r} of {feature!r}, which is none of the {len(names)} known ones "
                f"({listed}). Classes are matched by their names: write these examples with a schema that has all.",
                name=feature,
                received=name,
                path=where,
            )
    return np.array([list(names).index(name) for name in own], np.int64)


class Renumbered:
    """The examples of a source, some integers of which are other numbers."""

    def __init__(self, source: Source, tables: Mapping[str, NDArray[np.int64]], where: str) -> None:
        self._source, self._tables, self._where = source, dict(tables), where
        self.schema, self.count, self.sizes = source.schema, source.count, source.sizes
        self.seekable, self.identifies = source.seekable, source.identifies
        self.identity: dict[str, Any] = {
            **source.identity,
            "classes": {name: table.tolist() for name, table in self._tables.items()},
        }

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the examples from ``start`` to ``stop``."""
        at = start
        for block in self._source.blocks(start, stop):
            changed = {name: self._changed(name, block[name], at) for name in self._tables}
            yield {**block, **changed}
            at += len(next(iter(block.values())))

    def _changed(self, name: str, values: Any, at: int) -> Any:
        table = self._tables[name]
        if isinstance(values, list):
            return [self._changed(name, value, at + row)[()] for row, value in enumerate(values)]
        array = np.asarray(values)
        wrong = (array < 0) | (array >= len(table))
        if wrong.any():
            row = int(np.flatnonzero(wrong.reshape(len(array), -1).any(axis=1))[0]) if array.ndim else 0
            raise ConfigError(
                f"Example {at + row} of {self._where}: {name!r} is {array[wrong].flat[0]}, which is the number of none "
                f"of its {len(table)} classes."
            )
        return table[array].astype(array.dtype)
