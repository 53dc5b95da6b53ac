"""Checks that what is read is what the manifest describes: checksums of records, ends of shards, replaced files.

Every read is checked afterwards: a writer puts its manifest in place before it removes or replaces a file of an older
one. So a manifest that is still the same proves that the file was, too.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import record_framing
from tfdist.data.format.data_manifest import Manifest, Shard, require_manifest
from tfdist.data.format.record_framing import Content
from tfdist.errors import CorruptDataError, MissingFileError, ShortReadError, StorageError
from tfdist.storage.directory import Storage
from tfdist.storage.files import storage_error

_Span = tuple[int, int]  # first byte of a record's frame, bytes of its payload


def payload_of(data: bytes) -> bytes | None:
    """The payload of one record; None if its length or a checksum does not fit."""
    length = len(data) - record_framing.OVERHEAD_BYTES
    if length < 0 or data[: record_framing.HEADER_BYTES] != record_framing.header(length):
        return None
    return data[record_framing.HEADER_BYTES : -4] if record_framing.payload_fits(data, 0, length) else None


class Binding:
    """Ties what is read of a directory to its manifest; threads may share one."""

    def __init__(self, place: Storage, manifest: Manifest, ends: Callable[[int], tuple[_Span, _Span]]) -> None:
        self._place = place
        self._manifest = manifest
        self._ends = ends
        self._is_local = place.local is not None
        self._bound: dict[int, Any] = {}  # shard -> the state of the file that is the one
        self._same: Any = None  # the state of the manifest that is the one
        self._looked = -math.inf  # when it was last known to be the same
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @contextmanager
    def reading(self, shards: Iterable[int]) -> Iterator[None]:
        """Read these shards in a block; the result counts if no error is raised."""
        with self.explained():
            yield
        self.require(shards)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise DataChangedError for what fails in a block because the directory has changed."""
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
        """Raise what `reading` does, if these files are not those that the manifest describes."""
        fetched = self._place.fetched
        for number in shards:
            if number in self._bound and not self._is_local:
                continue  # its state would be a request
            with self.explained():
                state = self._place.state(self._manifest.shards[number].file)
                if self._bound.get(number) == state:
                    continue
                self._require_shard(number)
            self._bound[number] = state
            fetched = math.inf
        self.require_manifest(fetched)

    def states(self) -> NDArray[np.int64]:
        """The identity of each local file, int64 ``[shards * 4]``: device, inode, size, time in ns."""
        self.require(range(len(self._manifest.shards)))
        found = [number & (1 << 64) - 1 for shard in sorted(self._bound) for number in self._bound[shard]]
        return np.array(found, np.uint64).view(np.int64)

    def require_manifest(self, since: float = math.inf) -> None:
        """Raise if the directory has another manifest by now."""
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
        """Raise if the file of a shard has sound records that are not those of the manifest."""
        shard = self._manifest.shards[number]
        if shard.ends is None:
            return
        spans = self._ends(number)
        found: list[int | None] = []
        if not self._fits(shard, spans):
            found = [self._other(shard, span, stored) for span, stored in zip(spans, shard.ends, strict=True)]
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
        """A shard begins and ends as it must: the frames of two payloads, read in one go."""
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

    def _other(self, shard: Shard, span: _Span, stored: int) -> int | None:
        """The checksum of a sound record where another must be; None for none, and for a corrupt one, as any may be."""
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
        """The shard whose file this one is, of those that begin and end alike; it reads the whole file for them."""
        ours = self._manifest.shards[number]
        alike = [s for s in self._manifest.shards if (s.ends, s.bytes) == (ours.ends, ours.bytes)]
        if all(shard.crc32c == ours.crc32c for shard in alike):
            return None
        crc = Content(self._place, ours.file).crc()
        return None if crc == ours.crc32c else next((shard for shard in alike if shard.crc32c == crc), None)
