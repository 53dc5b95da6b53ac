"""Examples in files that no manifest describes: local, mapped into memory, watched for changes."""

import copy
import glob
import math
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.checked_examples import Binding
from tfdist.data.examples.computed_examples import Computed
from tfdist.data.examples.numpy_reader import Maps, cutter
from tfdist.data.format.aligned_arrays import aligned
from tfdist.data.format.data_manifest import Shard
from tfdist.data.format.schema import Schema
from tfdist.errors import ConfigError, CorruptDataError, DataChangedError
from tfdist.storage.files import state_of
from tfdist.storage.local_storage import LocalStorage

EXAMPLES, RAW, SEQUENCES = "examples", "raw", "sequences"
#: the values of `records` in `tfdist.data.open`
CONTENTS = (EXAMPLES, RAW, SEQUENCES)
_LOOK_SECONDS = 1.0
_NARROW = 64  # bytes up to which one indexing in NumPy is faster than a loop over rows
_Ids = NDArray[np.int64]


class Files:
    """Local files of one folder, mapped into memory; `crcs` are of what was indexed of each."""

    def __init__(self, paths: Sequence[Path], kind: str) -> None:
        self.paths = list(paths)
        self.kind = kind
        folder = os.path.commonpath([path.parent for path in paths])
        self.names = [os.path.relpath(path, folder) for path in paths]
        self.storage = LocalStorage(folder, url=str(paths[0]) if len(paths) == 1 else folder)
        self.binding = FileBinding(self.paths)
        self.maps = Maps(self.paths)
        #: the results of passes over the files: the kind of the files, and arrays
        self.passes: list[tuple[str, dict[str, NDArray[Any]]]] = []

    def as_kind(self, kind: str) -> "Files":
        """The same files, of which something else is known."""
        found = copy.copy(self)
        found.kind = kind
        return found

    def shard(self, number: int, examples: int, *index: NDArray[Any]) -> Shard:
        """The description of a file, which differs when its examples do."""
        crc = google_crc32c.value(self.kind.encode())
        for part in index:
            crc = google_crc32c.extend(crc, np.ascontiguousarray(part).tobytes())
        size = len(self.maps[number])
        return Shard(file=self.names[number], examples=examples, bytes=size, crc32c=crc, smallest=0, largest=0)

    def damaged(self, number: int, why: str) -> CorruptDataError:
        return CorruptDataError(f"{self.paths[number]} {why}", path=str(self.paths[number]))


class Places:
    """The places of consecutive examples in files: the first byte of each, and the end of the last one of each file."""

    def __init__(self, counts: Sequence[int], offsets: NDArray[Any]) -> None:
        self.begins = np.cumsum([0, *counts], dtype=np.int64)
        self._offsets = offsets

    def __call__(self, ids: _Ids) -> tuple[_Ids, _Ids]:
        """Return the first byte and the size of each example."""
        at = ids + np.searchsorted(self.begins, ids, side="right") - 1
        begins = self._offsets[at].astype(np.int64)
        return begins, self._offsets[at + 1].astype(np.int64) - begins

    def of_file(self, number: int) -> NDArray[Any]:
        """Return the offsets of one file."""
        return self._offsets[self.begins[number] + number : self.begins[number + 1] + number + 1]

    def shards(self, files: Files) -> list[Shard]:
        """Return the description of each file."""
        counts = np.diff(self.begins).tolist()
        return [files.shard(number, count, self.of_file(number)) for number, count in enumerate(counts)]


def cut_texts(texts: NDArray[np.uint8], places: Places, ids: _Ids) -> list[bytes]:
    """Texts that are kept one after the other."""
    begins, sizes = places(ids)
    spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
    return [texts[begin:end].tobytes() for begin, end in spans]


def narrow(array: NDArray[Any]) -> NDArray[Any]:
    """The numbers, none below 0, in 32 bits if they fit."""
    return array.astype(np.uint32 if array.max(initial=0) < 1 << 32 else np.int64)


class Foreign(Computed):
    """Examples in such files; `label` is the feature that is their label, where the schema has it."""

    def __init__(self, files: Files, shards: Sequence[Shard], label: str | None = None) -> None:
        if not sum(shard.examples for shard in shards):
            raise ConfigError(f"{files.storage.url} has no example ({files.kind}).", path=files.storage.url)
        self.files = files
        self.begins = np.cumsum([0, *(shard.examples for shard in shards)], dtype=np.int64)
        schema = self._schema()
        super().__init__(
            schema, shards, storage=files.storage, binding=files.binding, label=label if label in schema else None
        )

    @abstractmethod
    def _schema(self) -> Schema:
        """Return the features, which may follow from the bytes of some examples."""

    def bytes_at(self, ids: _Ids, begins: _Ids, sizes: _Ids) -> list[bytes]:
        """Bytes of the file of each example."""
        shards, _, _ = self.locate(ids)
        cuts = {number: cutter(self.files.maps[number]) for number in np.unique(shards).tolist()}
        spans = map(slice, begins.tolist(), (begins + sizes).tolist())
        return [cuts[shard](span) for shard, span in zip(shards.tolist(), spans, strict=True)]

    def arrays_at(self, ids: _Ids, begins: _Ids, width: int) -> NDArray[np.uint8]:
        """As many bytes of the file of each example, uint8 ``[examples, width]``."""
        shards, _, _ = self.locate(ids)
        maps = {number: self.files.maps[number] for number in np.unique(shards).tolist()}
        found = aligned((len(ids), width), np.uint8)
        if width <= _NARROW:
            for number, content in maps.items():
                here = np.flatnonzero(shards == number)
                found[here] = content[begins[here, np.newaxis] + np.arange(width)]
            return found
        for row, shard, begin in zip(found, shards.tolist(), begins.tolist(), strict=True):
            row[:] = maps[shard][begin : begin + width]
        return found

    def fitting(self, number: int, name: str, array: NDArray[Any] | None) -> NDArray[Any]:
        """Return the array that an example has for a feature; refuse one that is not as the schema says."""
        feature = self.schema[name]
        alike = array is not None and array.dtype.name == feature.dtype and feature.shape in (array.shape, (None,))
        if array is None or not alike or (feature.size is None and array.ndim != 1):
            said = "no array" if array is None else f"{array.dtype.name} of shape {array.shape}"
            raise self.bad(number, f"its {name} is {said}, which must be {feature}.")
        return array

    def stacked(self, name: str, arrays: list[NDArray[Any]]) -> Any:
        """Return the arrays of a feature as a column."""
        return arrays if self.schema[name].size is None else np.stack(arrays) if arrays else np.zeros((0,))

    def bad(self, number: int, why: str) -> CorruptDataError:
        """The error of an example that cannot be read."""
        shard, place, _ = self.locate(np.array([number]))
        file = self.files.names[int(shard[0])]
        return CorruptDataError(f"example {number} is corrupt: {file}, number {int(place[0])}: {why}", path=file)


class FileBinding(Binding):
    """Refuses files that have changed since they were opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._states = [state_of(path.stat()) for path in paths]
        self._looked = time.monotonic()
        self._lock = threading.Lock()

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except (CorruptDataError, OSError, ValueError, IndexError):
            self.require(range(len(self._paths)))
            raise

    def states(self) -> NDArray[np.int64]:
        self.require(range(len(self._paths)))
        found = [number & (1 << 64) - 1 for state in self._states for number in state]
        return np.array(found, np.uint64).view(np.int64)

    def require_manifest(self, since: float = math.inf) -> None:
        with self._lock:
            if time.monotonic() < self._looked + _LOOK_SECONDS:
                return
            self._looked = time.monotonic()
        self.require(range(len(self._paths)))

    def require(self, shards: Iterable[int]) -> None:
        for number in shards:
            path = self._paths[number]
            if not path.exists() or state_of(path.stat()) != self._states[number]:
                raise DataChangedError(
                    f"{path} was written anew or removed since it was opened. Read it again to have what is there now.",
                    path=str(path),
                )


def files_of(source: Any) -> list[Path]:
    """The files that a path means: one, those of a folder, or those that wildcards match."""
    text = os.path.expanduser(os.fspath(source))
    if os.path.isdir(text):
        names = [name for name in sorted(os.listdir(text)) if not name.startswith((".", "_"))]
        paths = [Path(text, name) for name in names]
    else:
        paths = [Path(text)] if os.path.exists(text) else sorted(map(Path, glob.glob(text)))
    return [path for path in paths if path.is_file()]
