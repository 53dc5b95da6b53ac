"""The examples of a directory by number, checked when they are read: checksums of records and shards, replaced files.

Every read is checked afterwards: a writer puts its manifest in place before it removes or replaces a file of an older
one. So a manifest that is still the same proves that the file was, too.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import example, record_framing
from tfdist.data.format.contents import index_anew
from tfdist.data.format.data_manifest import Manifest, Shard, require_manifest
from tfdist.data.format.record_framing import Content
from tfdist.data.format.schema import FIXED, TEXT, Schema, indexed_values
from tfdist.data.format.shard_index import Index, arrays_of, stored_index
from tfdist.errors import ConfigError, CorruptDataError, MissingFileError, ShortReadError, StorageError
from tfdist.storage.directory import Storage
from tfdist.storage.files import State, storage_error

_logger = logging.getLogger(__name__)
_STEP = 4096  # examples that are looked at in one go
_Span = tuple[int, int]  # first byte of a record's frame, bytes of its payload


class Examples:
    """The examples of a directory, by number.

    Args:
        place: the storage of the directory.
        found: the manifest of the directory.
    """

    def __init__(self, place: Storage, found: Manifest) -> None:
        self.storage = place
        self.manifest = found
        for shard in found.shards:  # first, so that a wrong manifest cannot make the arrays below larger than the files
            self._check_size(shard)
        self.template = example.Template(found.schema) if found.layout == FIXED else None
        #: int64 ``[shards + 1]``: number of each shard's first example
        self.begins = np.cumsum([0, *(shard.examples for shard in found.shards)], dtype=np.int64)
        self._indices: dict[int, Index] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        #: checks that what is read belongs to the manifest
        self.binding = Binding(place, found, self._ends)

    def _ends(self, shard: int) -> tuple[tuple[int, int], tuple[int, int]]:
        _, offsets, lengths = self.locate(np.array([self.begins[shard], self.begins[shard + 1] - 1]))
        first, last = zip(offsets.tolist(), lengths.tolist(), strict=True)
        return first, last

    def _check_size(self, shard: Shard) -> None:
        try:
            size = self.storage.size(shard.file)
        except MissingFileError as error:
            raise MissingFileError(
                f"{self.storage.url} has no {shard.file}, which its manifest names. Copy the file again, or run "
                f"`tfdist data repair {self.storage.url} --drop-missing`, which continues without its examples.",
                path=shard.file,
            ) from error
        if size != shard.bytes:
            raise CorruptDataError(
                f"{shard.file} has {size} bytes; the manifest says {shard.bytes}. It was cut short or replaced. "
                f"`tfdist data repair {self.storage.url}` keeps what is whole.",
                received=size,
                path=shard.file,
            )

    @property
    def url(self) -> str:
        """The path or URL of the directory, as the user gave it."""
        return self.storage.url

    @property
    def paths(self) -> list[str] | None:
        """The path of each shard; None if they are not local."""
        folder = self.storage.local
        return None if folder is None else [str(folder / shard.file) for shard in self.manifest.shards]

    @property
    def schema(self) -> Schema:
        """The features of each example."""
        return self.manifest.schema

    def __len__(self) -> int:
        return self.manifest.examples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        """Return an example as a dict of values, or a list of examples for a slice."""
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        place = validation.integer("number", number)
        if not -len(self) <= place < len(self):
            raise IndexError(f"example {place} of {len(self)}")
        return next(self.each([place % len(self)]))

    def each(self, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the examples with these numbers, read in one go.

        Raises:
            CorruptDataError: an example is corrupt; the message has its number and place.
            DataChangedError: the directory was written anew or repaired since it was opened.
        """
        for payload in payloads_of(self, np.asarray(numbers, np.int64)):
            parsed = example.parse(payload)
            yield {name: example.value(name, feature, parsed) for name, feature in self.schema.items()}

    def corrupt(self, number: int, shard: int, offset: int) -> str:
        """Return the error message for a corrupt example.

        Args:
            number: the number of the example.
            shard: the number of its shard, from 0.
            offset: the first byte of its record in the shard.
        """
        return (
            f"example {number} is corrupt: {self.manifest.shards[shard].file}, byte {offset}. "
            f"`tfdist data verify {self.url}` finds all that are, `tfdist data repair` takes them out; "
            "on_corrupt='skip' reads on without them."
        )

    def index(self, shard: int) -> Index:
        """Return the index of a shard, made from the shard where its file is missing."""
        if shard not in self._indices:
            with self.binding.explained():
                self._indices[shard] = self._load(self.manifest.shards[shard])
        return self._indices[shard]

    def _load(self, shard: Shard) -> Index:
        try:
            return stored_index(self.storage, self.manifest, shard)
        except (FileNotFoundError, CorruptDataError) as error:
            _logger.warning(
                "%s is indexed anew, in memory; `tfdist data repair %s` writes its index. The reason: %s",
                *(shard.file, self.storage.url, error),
            )
        return index_anew(
            Content(self.storage, shard.file),
            shard.file,
            self.schema,
            self.manifest.layout,
            examples=shard.examples,
            accept=lambda problem: _logger.warning("%s", problem),
        )

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard of each example, the first byte of its frame, and the bytes of its payload."""
        shards = np.searchsorted(self.begins, numbers, side="right") - 1
        inside = numbers - self.begins[shards]
        if self.template is not None:
            length = self.template.length
            offsets = inside * (length + record_framing.OVERHEAD_BYTES)
            return shards.astype(np.int32), offsets, np.full(len(numbers), length, np.int64)
        places = numbers + shards  # each shard has one offset more than it has examples
        begins, ends = (self.column("offset")[at].astype(np.int64) for at in (places, places + 1))
        return shards.astype(np.int32), begins, ends - begins - record_framing.OVERHEAD_BYTES

    def verify(self) -> Any:
        """Verify every byte; see `tfdist.data.verify`, which returns the same report."""
        from tfdist.data.check.verifying import verify_manifest  # here, because few programs need it

        return verify_manifest(self.storage, self.manifest)

    def require_sound(self) -> None:
        """Verify every byte, and raise CorruptDataError if the directory is not sound."""
        self.verify().require_sound()

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The offsets of all shards' indices, one after the other."""
        return self.column("offset").astype(np.int64, copy=False)

    def column(self, name: str) -> NDArray[Any]:
        """Return an array of the index for all shards, such as ``value:label``; integers may have a smaller type."""
        if name not in self._columns:
            empty = arrays_of(0, self.schema, self.manifest.layout).items() if not self.manifest.shards else ()
            found: dict[str, NDArray[Any]] = {key: np.zeros((0, *shape[1:]), dtype) for key, (dtype, shape) in empty}
            for number, shard in enumerate(self.manifest.shards):
                with self.binding.explained():  # not `index`, which keeps it: indices would take most of the memory
                    part = self._indices.get(number) or self._load(shard)
                for key in arrays_of(0, self.schema, self.manifest.layout):
                    is_offset = key == "offset"  # a shard has one offset more than examples
                    values = _narrow(part.offsets if is_offset else part.columns[key])
                    begin, count = int(self.begins[number]), len(self)
                    begin, count = (begin + number, count + len(self.begins) - 1) if is_offset else (begin, count)
                    found[key] = _put(found.get(key), values, begin, count)
                del part, values  # before the next part is loaded
            self._columns |= found
        return self._columns[name]

    def integers(self, name: str) -> NDArray[Any]:
        """Return a feature of single integers for all examples, ``[examples]``, read from the index or from the shards.

        Raises:
            ConfigError: there is no such feature, or its values are not single integers.
        """
        feature = self.schema.get(name)
        if feature is None or feature.encoding != "int64" or feature.shape != ():
            raise ConfigError(
                f"feature {name!r} is {feature}; it must be a single integer per example. There are "
                f"{', '.join(map(repr, self.schema))}."
            )
        return self.numbers(name)

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Return the length of a list or text in each example; for a feature of single integers, its values.

        Args:
            name: the name of the feature, which the schema must have.
        """
        if f"size:{name}" in arrays_of(0, self.schema, self.manifest.layout):
            return self.column(f"size:{name}").astype(np.int64)
        if self.schema[name].shape == () and self.schema[name].dtype != TEXT:
            return self.numbers(name).astype(np.int64)
        return np.fromiter((len(value) for value in self._each_of(name)), np.int64, len(self))

    def _each_of(self, name: str) -> Iterator[Any]:
        return (example[name] for span in spans(len(self)) for example in self.each(span))

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a feature of single numbers for all examples, read from the index or else from the shards.

        Args:
            name: the name of the feature, which the schema must have.
        """
        if self.template is None:
            if name not in indexed_values(self.schema, self.manifest.layout):
                return np.array(list(self._each_of(name)), self.schema[name].dtype)
            return self.column(f"value:{name}").astype(self.schema[name].dtype, copy=False)
        found = []
        for place, shard in enumerate(self.manifest.shards):
            width = self.template.length + record_framing.OVERHEAD_BYTES
            step = max(1, (16 << 20) // width)
            for start in range(0, shard.examples, step):
                count = min(step, shard.examples - start)
                with self.binding.reading([place]):
                    data = self.storage.read(shard.file, start * width, count * width)
                rows = np.frombuffer(data, np.uint8).reshape(count, width)
                found.append(self.template.column(name, rows[:, record_framing.HEADER_BYTES : -4]))
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Integers in the smallest type that holds all of them."""
    if values.dtype.kind not in "iu" or not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    for width in [2**power for power in range(3) if 2**power < values.itemsize]:
        kind = np.dtype(f"{'u' if low >= 0 else 'i'}{width}")
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def _put(whole: NDArray[Any] | None, values: NDArray[Any], begin: int, count: int) -> NDArray[Any]:
    """Write a part into the array of all shards, whose dtype fits both; memory is allocated on the first write."""
    if whole is None:
        whole = np.empty((count, *values.shape[1:]), values.dtype)
    whole = whole.astype(np.promote_types(whole.dtype, values.dtype), copy=False)
    whole[begin : begin + len(values)] = values
    return whole


def spans(count: int) -> Iterator[range]:
    """Yield the numbers below ``count``, as many at a time as examples are read in one go."""
    return (range(at, min(at + _STEP, count)) for at in range(0, count, _STEP))


def payloads_of(examples: Examples, ids: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the records of examples, read in one go and checked."""
    shards, offsets, lengths = examples.locate(ids)
    files = [shard.file for shard in examples.manifest.shards]
    ranges = [
        (files[shard], offset, length + record_framing.OVERHEAD_BYTES)
        for shard, offset, length in zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
    ]
    with examples.binding.reading(np.unique(shards).tolist()):
        frames = examples.storage.read_ranges(ranges)
    for number, shard, offset, data in zip(ids.tolist(), shards.tolist(), offsets.tolist(), frames, strict=True):
        payload = payload_of(data)
        if payload is None:
            raise CorruptDataError(examples.corrupt(number, shard, offset), path=files[shard])
        yield payload


def payload_of(data: bytes) -> bytes | None:
    """Return the payload of one record; None if its length or a checksum does not fit."""
    length = len(data) - record_framing.OVERHEAD_BYTES
    if length < 0 or data[: record_framing.HEADER_BYTES] != record_framing.header(length):
        return None
    return data[record_framing.HEADER_BYTES : -4] if record_framing.payload_fits(data, 0, length) else None


class Binding:
    """A check that what is read of a directory belongs to its manifest; threads may share one."""

    def __init__(self, place: Storage, manifest: Manifest, ends: Callable[[int], tuple[_Span, _Span]]) -> None:
        self._place = place
        self._manifest = manifest
        self._ends = ends
        self._is_local = place.local is not None
        self._bound: dict[int, Any] = {}  # shard -> the state of its file when it matched the manifest
        self._same: Any = None  # the state of the manifest's file when it was the expected one
        self._looked = -math.inf  # when that was last known
        self._lock = threading.Lock()
        self._alike: dict[Any, list[Shard]] = {}  # shards by what tells most of them apart; made when it is asked for

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @contextmanager
    def reading(self, shards: Iterable[int]) -> Iterator[None]:
        """Guard a block that reads these shards; its result counts if no error is raised."""
        with self.explained():
            yield
        self.require(shards)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise DataChangedError in place of a block's error if the directory has changed."""
        try:
            yield
        except CorruptDataError:
            self.require_manifest()
            raise
        except OSError as error:
            self.require_manifest()
            if isinstance(error, StorageError):
                raise
            raise storage_error(error, Path(error.filename or self._place.url), "read") from error

    def require(self, shards: Iterable[int]) -> None:
        """Raise the errors of `reading` if these files are not those that the manifest describes."""
        fetched = self._place.fetched
        for number in shards:
            if number in self._bound and not self._is_local:
                continue  # its state would be a request
            with self.explained():
                state = self._place.state(self._manifest.shards[number].file)
            if self._bind(number, state):
                fetched = math.inf
        self.require_manifest(fetched)

    def require_states(self, states: Mapping[int, State]) -> None:
        """Raise the errors of `require` for local files that were read in these states."""
        for number, state in states.items():
            self._bind(number, state)
        self.require_manifest()

    def _bind(self, number: int, state: Any) -> bool:
        """Require the shard if its state is new, and return whether it is."""
        if self._bound.get(number) == state:
            return False
        with self.explained():
            self._require_shard(number)
        self._bound[number] = state
        return True

    def states(self) -> NDArray[np.int64]:
        """Return the identity of each local file, int64 ``[shards * 4]``: device, inode, size, time in ns."""
        self.require(range(len(self._manifest.shards)))
        found = [number & (1 << 64) - 1 for shard in sorted(self._bound) for number in self._bound[shard]]
        return np.array(found, np.uint64).view(np.int64)

    def require_manifest(self, since: float = math.inf) -> None:
        """Raise DataChangedError if the directory has another manifest by now."""
        with self._lock:
            now = time.monotonic()
            if self._looked > since:
                return
            try:
                state = self._place.state(manifests.NAME)
            except MissingFileError:
                state = None
            if state is None or state != self._same:
                require_manifest(self._place, self._manifest)
            self._same, self._looked = state, now

    def _require_shard(self, number: int) -> None:
        """Raise CorruptDataError if the file of a shard has sound records that are not those of the manifest."""
        shard = self._manifest.shards[number]
        if shard.ends is None:
            return
        spans = self._ends(number)
        found: list[int | None] = []
        if not self._fits(shard, spans):
            places = zip(spans, shard.ends, strict=True)
            found = [self._unexpected_checksum(shard, span, stored) for span, stored in places]
        is_other = any(crc is not None for crc in found)
        whose = None if is_other else self._twin(number)
        for one in self._manifest.shards if is_other else ():
            ends = zip(found, one.ends or (), strict=False)
            if whose is None and any(crc is not None and crc == end for crc, end in ends):
                whose = one  # it begins or ends with these checksums
        if not is_other and whose is None:
            return
        said = f"the examples of {whose.file}" if whose else "sound examples, which are not those that it must hold"
        raise CorruptDataError(
            f"{shard.file} holds {said}: files of {self._place.url} were swapped or renamed, or one was copied from "
            f"elsewhere. Give them their names again, or copy them again; `tfdist data verify {self._place.url}` "
            "compares all of them with the manifest.",
            path=shard.file,
        )

    def _fits(self, shard: Shard, spans: Sequence[_Span]) -> bool:
        """Return whether a shard has the first and last payload of its manifest; both frames are read in one go."""
        assert shard.ends is not None
        expected = []
        for (offset, length), stored in zip(spans, shard.ends, strict=True):
            expected.append((offset, record_framing.header(length)))
            expected.append((offset + record_framing.HEADER_BYTES + length, stored.to_bytes(4, "little")))
        try:
            found = self._place.read_ranges([(shard.file, offset, len(data)) for offset, data in expected])
        except ShortReadError:
            return False
        return found == [data for _, data in expected]

    def _unexpected_checksum(self, shard: Shard, span: _Span, stored: int) -> int | None:
        """Return the checksum of a sound record that is not the expected one; None if there is no such record."""
        offset, length = span
        try:
            header = self._place.read(shard.file, offset, record_framing.HEADER_BYTES)
            if header != record_framing.header(length):
                length = int.from_bytes(header[:8], "little")
                if header != record_framing.header(length):
                    return None
            footer = self._place.read(shard.file, offset + record_framing.HEADER_BYTES + length, 4)
            if int.from_bytes(footer, "little") == stored:
                return None
            payload = self._place.read(shard.file, offset + record_framing.HEADER_BYTES, length)
        except ShortReadError:
            return None
        crc = record_framing.masked_crc(payload)
        return crc if crc == int.from_bytes(footer, "little") else None

    def _twin(self, number: int) -> Shard | None:
        """Return the shard that this file holds, of those that begin and end alike; reads the whole file."""
        ours = self._manifest.shards[number]
        if not self._alike:
            found: dict[Any, list[Shard]] = {}
            for shard in self._manifest.shards:
                found.setdefault((shard.ends, shard.bytes), []).append(shard)
            self._alike = found  # at once: another thread may ask
        alike = self._alike[ours.ends, ours.bytes]
        if all(shard.crc32c == ours.crc32c for shard in alike):
            return None
        crc = Content(self._place, ours.file).crc()
        return None if crc == ours.crc32c else next((shard for shard in alike if shard.crc32c == crc), None)
