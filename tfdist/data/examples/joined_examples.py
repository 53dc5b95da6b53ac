"""The examples of several directories, numbered as if they were in one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Binding, Examples
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.format.schema import FIXED, GENERIC, TEXT, Feature, Schema
from tfdist.data.format.shard_index import Index
from tfdist.errors import ConfigError
from tfdist.storage.files import State

_Ids = NDArray[np.int64]


class Joined(Examples):
    """The examples of several directories, one directory after the other.

    `is_uniform` is True if all are local TFRecord files of one schema and layout, so that one reader fits all records.
    """

    def __init__(self, parts: Mapping[str, Examples], features: Sequence[str] = ()) -> None:
        self.parts = list(parts.values())
        #: The names of the parts: paths, or the sources of a mixture.
        self.names = list(parts)
        schema = _joined_schema(parts, features)
        first = self.parts[0]
        kinds = {(part.schema == schema, part.manifest.layout, type(part)) for part in self.parts}
        self.is_uniform = kinds == {(True, first.manifest.layout, Examples)} and self.paths is not None
        labels = {part.manifest.label for part in self.parts if part.manifest.label in schema}
        self.manifest = Manifest(
            schema=schema,
            layout=first.manifest.layout if self.is_uniform else GENERIC,
            shards=tuple(shard for part in self.parts for shard in part.manifest.shards),
            label=labels.pop() if len(labels) == 1 else None,
        )
        self.storage = first.storage
        self.template = first.template if self.manifest.layout == FIXED else None
        self.begins = np.cumsum([0, *(shard.examples for shard in self.manifest.shards)], dtype=np.int64)
        #: The number of the first example of each directory, and then the number of all examples.
        self.firsts = np.cumsum([0, *map(len, self.parts)], dtype=np.int64)
        self._shards = np.cumsum([0, *(len(part.manifest.shards) for part in self.parts)], dtype=np.int64)
        self._columns: dict[str, NDArray[Any]] = {}
        self.binding = _Bindings(self.parts, self._shards)

    @property
    def url(self) -> str:
        return " and ".join(part.url for part in self.parts)

    @property
    def paths(self) -> list[str] | None:
        found = [part.paths for part in self.parts]
        return None if None in found else [path for paths in found for path in paths or ()]

    def each(self, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        ids = np.asarray(numbers, np.int64)
        rows: list[Any] = [None] * len(ids)
        for place, here in self.by_part(ids):
            found = self.parts[place].each((ids[here] - self.firsts[place]).tolist())
            for at, row in zip(here.tolist(), found, strict=True):
                rows[at] = {name: row[name] for name in self.schema}
        yield from rows

    def by_part(self, ids: _Ids) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield each directory that has some of these examples, with their places in ``ids``."""
        part = np.searchsorted(self.firsts, ids, side="right") - 1
        for place in np.unique(part).tolist():
            yield place, np.flatnonzero(part == place)

    def corrupt(self, number: int, shard: int, offset: int) -> str:
        place = int(np.searchsorted(self._shards, shard, side="right")) - 1
        return self.parts[place].corrupt(number - int(self.firsts[place]), shard - int(self._shards[place]), offset)

    def index(self, shard: int) -> Index:
        place = int(np.searchsorted(self._shards, shard, side="right")) - 1
        return self.parts[place].index(shard - int(self._shards[place]))

    def locate(self, numbers: _Ids) -> tuple[NDArray[np.int32], _Ids, _Ids]:
        if self.template is not None:
            return super().locate(numbers)
        shards, offsets, lengths = np.empty(len(numbers), np.int32), np.empty_like(numbers), np.empty_like(numbers)
        for place, here in self.by_part(numbers):
            shard, offsets[here], lengths[here] = self.parts[place].locate(numbers[here] - self.firsts[place])
            shards[here] = shard + self._shards[place]
        return shards, offsets, lengths

    def column(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = np.concatenate([part.column(name) for part in self.parts])
        return self._columns[name]

    def numbers(self, name: str) -> NDArray[Any]:
        return np.concatenate([part.numbers(name) for part in self.parts])

    def lengths(self, name: str) -> NDArray[np.int64]:
        return np.concatenate([part.lengths(name) for part in self.parts])

    def verify(self) -> Any:
        raise ConfigError(
            f"{self.url} are several directories; verify each on its own: `tfdist data verify DIRECTORY`."
        )

    def require_sound(self) -> None:
        for part in self.parts:
            part.require_sound()


class _Bindings(Binding):
    """The bindings of several directories as one."""

    def __init__(self, parts: Sequence[Examples], shards: NDArray[np.int64]) -> None:
        self._each = [part.binding for part in parts]
        self._shards = shards

    @contextmanager
    def explained(self) -> Iterator[None]:
        with ExitStack() as stack:
            for binding in self._each:
                stack.enter_context(binding.explained())
            yield

    def require(self, shards: Iterable[int]) -> None:
        asked = np.array(sorted(shards), np.int64)
        bounds = np.searchsorted(asked, self._shards)
        for place, binding in enumerate(self._each):
            if bounds[place] < bounds[place + 1]:
                binding.require((asked[bounds[place] : bounds[place + 1]] - self._shards[place]).tolist())

    def require_states(self, states: Mapping[int, State]) -> None:
        found: dict[int, dict[int, Any]] = {}
        for number, state in states.items():
            place = int(np.searchsorted(self._shards, number, side="right")) - 1
            found.setdefault(place, {})[number - int(self._shards[place])] = state
        for place, each in found.items():
            self._each[place].require_states(each)

    def states(self) -> NDArray[np.int64]:
        return np.concatenate([binding.states() for binding in self._each])

    def require_manifest(self, since: float = np.inf) -> None:
        for binding in self._each:
            binding.require_manifest(since)


def joined(parts: Mapping[str, Examples], features: Sequence[str] = ()) -> Examples:
    """Return the examples of all directories. Messages use the names of `parts`; only `features` are kept."""
    if not parts:
        raise ConfigError("directory is an empty list; pass at least one directory.", name="directory", received=[])
    return Joined(parts, features) if len(parts) > 1 or features else next(iter(parts.values()))


def _joined_schema(parts: Mapping[str, Examples], features: Sequence[str]) -> Schema:
    names = list(features) or list(next(iter(parts.values())).schema)
    for key, part in parts.items():
        missing = [name for name in names if name not in part.schema]
        more = [] if features else [name for name in part.schema if name not in names]
        if missing or more:
            raise ConfigError(
                f"{key} has the features {', '.join(map(repr, part.schema))}; {', '.join(map(repr, names))} are "
                "required, as in the first. Directories that are read together must have the same features: name "
                "those that all have with tfdist.data.mix(..., features=[...]).",
                name="features",
                received=[*missing, *more],
            )
    return Schema({name: _joined_feature(name, {key: p.schema[name] for key, p in parts.items()}) for name in names})


def _joined_feature(name: str, found: Mapping[str, Feature]) -> Feature:
    (first_key, first), *rest = found.items()
    for key, feature in rest:
        like = (feature.dtype, feature.encoding, feature.unit) == (first.dtype, first.encoding, first.unit)
        if not like or len(feature.shape) != len(first.shape) or feature.names != first.names:
            said = f"{first_key} has {first}, {key} has {feature}"
            if feature.names != first.names:
                said = f"its classes in {first_key} are {validation.shown(list(first.names))}, in {key} "
                said += validation.shown(list(feature.names))
            raise ConfigError(
                f"feature {name!r} is not the same everywhere: {said}. Write one of them anew with the schema of the "
                "other: `tfdist data write SOURCE DIRECTORY --schema OTHER/manifest.json`.",
                name=name,
            )
    if len({feature.shape for feature in found.values()}) == 1:
        return first
    if len(first.shape) == 1 and first.dtype != TEXT:
        return replace(first, shape=(None,))
    shapes = ", ".join(f"{key} has {feature.shape}" for key, feature in found.items())
    raise ConfigError(f"feature {name!r} has several shapes: {shapes}; it must have one.", name=name)
