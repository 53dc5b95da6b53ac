"""Examples that are not records of TFRecord files: their columns are computed on request. No TensorFlow."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.checked_examples import Binding, Examples, spans
from tfdist.data.examples.fetch import PAYLOAD, Failures, objects, stand_ins
from tfdist.data.format import record_framing
from tfdist.data.format.data_manifest import Manifest, Shard
from tfdist.data.format.schema import GENERIC, TEXT, Feature, Schema
from tfdist.data.format.shard_index import Index
from tfdist.data.writing.encode import Encoder
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import Storage

_FILE = ""  # no feature can have this name
_logger = logging.getLogger(__name__)
_Ids = NDArray[np.int64]
Columns = dict[str, Any]


class Computed(Examples):
    """Examples whose columns a subclass computes; `shards` names their files or other origins."""

    #: reads them as tf.train.Example, where they are stored as such
    encoded: Callable[[_Ids], list[bytes]] | None = None

    def __init__(
        self, schema: Schema, shards: Sequence[Shard], *, storage: Storage, binding: Binding, label: str | None = None
    ) -> None:
        self.storage = storage
        self.binding = binding
        self.manifest = Manifest(schema=schema, layout=GENERIC, shards=tuple(shards), label=label)
        self.template = None
        self.begins = np.cumsum([0, *(shard.examples for shard in shards)], dtype=np.int64)

    @abstractmethod
    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        """Return features as arrays, or as lists of bytes or arrays if lengths differ; or raise CorruptDataError."""

    def stored(self) -> dict[str, int | None]:
        """Return the features that files store unencoded, with their width in bytes, or None if it varies."""
        return {}

    def places(self, ids: _Ids) -> dict[str, tuple[_Ids, _Ids]]:
        """Return the first byte and the size of each feature of `stored`, in the file of each example."""
        return {}

    @property
    def paths(self) -> list[str] | None:
        return None

    def each(self, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        ids = np.asarray(numbers, np.int64)
        columns = self.columns(ids, list(self.schema)) if len(ids) else {}
        for place in range(len(ids)):
            row = {name: values[place] for name, values in columns.items()}
            yield {name: value if isinstance(value, bytes) else np.asarray(value) for name, value in row.items()}

    def numbers(self, name: str) -> NDArray[Any]:
        return np.asarray([value for part in self._all(name) for value in part], self.schema[name].dtype)

    def lengths(self, name: str) -> _Ids:
        if self.schema[name].shape == () and self.schema[name].dtype != TEXT:
            return self.numbers(name).astype(np.int64)
        return np.array([len(value) for part in self._all(name) for value in part], np.int64)

    def _all(self, name: str) -> Iterator[Any]:
        for span in spans(len(self)):
            yield self.columns(np.asarray(span, np.int64), [name])[name]

    def locate(self, numbers: _Ids) -> tuple[NDArray[np.int32], _Ids, _Ids]:
        shards = np.searchsorted(self.begins, numbers, side="right") - 1
        return shards.astype(np.int32), numbers - self.begins[shards], np.zeros_like(numbers)

    def corrupt(self, number: int, shard: int, offset: int) -> str:
        file = self.manifest.shards[shard].file
        return f"example {number} is corrupt: {file}, number {number - int(self.begins[shard])} of the file."

    def index(self, shard: int) -> Index:
        raise ConfigError(f"{self.url} has no index of tfdist.")

    def verify(self) -> Any:
        raise ConfigError(
            f"{self.url} has no checksums of tfdist; `tfdist data write` makes a directory that has them."
        )

    def require_sound(self) -> None:
        for span in spans(len(self)):
            self.columns(np.asarray(span, np.int64), list(self.schema))


class ComputedFetcher:
    """A fetcher for `Pipeline`: a list of any length becomes bytes, a list of texts a whole tf.train.Example."""

    def __init__(self, examples: Computed, *, skip: bool) -> None:
        self.examples = examples
        self.failures = Failures()
        self.skip = skip
        schema = examples.schema
        is_parsed = any(feature.dtype == TEXT and feature.shape != () for feature in schema.values())
        is_parsed = is_parsed or examples.encoded is not None
        self.names = [PAYLOAD] if is_parsed else list(schema)
        self._encode = Encoder(schema, GENERIC)
        self._reported: set[int] = set()
        self._stand_in: int | None = None

    def __call__(self, ids: _Ids) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        if self.names == [PAYLOAD]:
            payloads, weight = self.payloads(ids)
            return {PAYLOAD: payloads}, weight
        if not len(ids):  # which a batch that is drawn at random may be
            return {name: _none_of(feature) for name, feature in self.examples.schema.items()}, np.ones(0, np.float32)
        found, weight = self._sound(ids)
        columns = {}
        for name, feature in self.examples.schema.items():
            values = found[name]
            if feature.size is None:
                values = objects([np.asarray(value, feature.dtype).tobytes() for value in values])
            elif feature.dtype == TEXT:
                values = objects(values)
            columns[name] = np.asarray(values) if values.__class__ is not np.ndarray else values
        return columns, weight

    def payloads(self, ids: _Ids) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return the examples as bytes of tf.train.Example, and their weights."""
        if not len(ids):
            return objects([]), np.ones(0, np.float32)
        found, weight = self._sound(ids)
        if PAYLOAD in found:
            return objects(found[PAYLOAD]), weight
        encoded = self._encode(found)
        ends = encoded.ends.tolist()
        spans = zip([0, *ends[:-1]], ends, strict=True)
        data = memoryview(encoded.data)
        return objects([bytes(data[a + record_framing.HEADER_BYTES : b - 4]) for a, b in spans]), weight

    def stored(self) -> dict[str, int | None]:
        """Return `Computed.stored`, without features of zero bytes."""
        return {name: width for name, width in self.examples.stored().items() if width != 0}

    def places(self, ids: _Ids) -> tuple[NDArray[np.int32], Columns, NDArray[np.float32]]:
        """Return the file of each example, `Computed.places`, and the weight of each example."""

        def placed(ids: _Ids, names: list[str]) -> Columns:
            return {_FILE: self.examples.locate(ids)[0], **self.examples.places(ids)}

        found, weight = self._sound(ids, placed)
        return found.pop(_FILE), found, weight

    def _sound(
        self, ids: _Ids, read: Callable[[_Ids, list[str]], Columns] | None = None
    ) -> tuple[Columns, NDArray[np.float32]]:
        read = read or self._read
        names, weight = list(self.examples.schema), np.ones(len(ids), np.float32)
        with self.examples.binding.reading(np.unique(self.examples.locate(ids)[0]).tolist()):
            try:
                return read(ids, names), weight
            except CorruptDataError:
                if not self.skip:
                    raise
            weight[:] = [self._is_sound(number, names) for number in ids.tolist()]
            good = np.flatnonzero(weight)
            stand_in = int(ids[good[0]]) if len(good) else self._any_sound(int(ids[0]), names)
            return read(np.where(weight > 0, ids, stand_in), names), weight

    def _read(self, ids: _Ids, names: list[str]) -> Columns:
        encoded = self.examples.encoded
        return self.examples.columns(ids, names) if encoded is None else {PAYLOAD: encoded(ids)}

    def _is_sound(self, number: int, names: list[str]) -> bool:
        try:
            self._read(np.array([number]), names)
        except CorruptDataError as error:
            if number not in self._reported:
                self._reported.add(number)
                _logger.warning("%s It counts with weight 0.", error)
            return False
        return True

    def _any_sound(self, near: int, names: list[str]) -> int:
        for number in stand_ins(near, len(self.examples), self._stand_in):
            if self._is_sound(number, names):
                self._stand_in = number  # the next batch of a long corrupt stretch need not look for it
                return number
        raise CorruptDataError(f"no example of {self.examples.url} is sound.", path=self.examples.url)


def _none_of(feature: Feature) -> NDArray[Any]:
    """Return the column of no examples, as `ComputedFetcher` has it."""
    if feature.size is None or feature.dtype == TEXT:
        return objects([])
    return np.zeros((0, *(dim or 0 for dim in feature.shape)), feature.dtype)
