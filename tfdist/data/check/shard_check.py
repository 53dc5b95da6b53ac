"""Compare one shard with its description: file, records, index, and the entry in the manifest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.contents import Contents, batches
from tfdist.data.format.data_manifest import Manifest, Shard
from tfdist.data.format.picture_decoding import Decode
from tfdist.data.format.record_framing import OVERHEAD_BYTES, Content, Found, walk
from tfdist.data.format.schema import FIXED
from tfdist.data.format.shard_index import Index, stored_index
from tfdist.errors import CorruptDataError, MissingFileError
from tfdist.storage.directory import Storage
from tfdist.validation import counted

MOST_PLACES = 1000  # of a shard that are listed one by one
_MOST_FAULTS = 100_000  # that are kept in memory


#: the problem of a file that the manifest names and that is not there
MISSING = "there is no such file"


@dataclass(frozen=True)
class Place:
    """A fault, and its place.

    Attributes:
        file: the name of the file in the directory.
        offset: the byte offset in the file; None if the fault concerns the whole file.
        example: the number of the first affected example; None if it is not known, or if none is affected.
        problem: a description of the fault.
        examples: the number of examples that cannot be read because of the fault.
    """

    file: str
    offset: int | None
    example: int | None
    problem: str
    examples: int = 0

    def __str__(self) -> str:
        where = "" if self.offset is None else f", byte {self.offset}"
        which = "" if self.example is None else f", example {self.example}"
        more = f" (and {counted(self.examples - 1, 'more example')})" if self.examples > 1 else ""
        return f"{self.file}{where}{which}: {self.problem}{more}"


@dataclass(frozen=True)
class Examined:
    """The result for one shard: its faults, its readable examples, and what has to be written anew."""

    places: tuple[Place, ...]
    sound: int
    is_missing: bool = False
    is_damaged: bool = False
    is_described: bool = True
    is_indexed: bool = True


def examine(
    place: Storage,
    manifest: Manifest,
    number: int,
    *,
    first: int,
    contents: bool,
    decode: Decode | None,
    seen: Callable[[int], None],
) -> Examined:
    look = Contents(manifest.schema, manifest.layout, decode=decode) if contents or decode else None
    return _Examination(place, manifest, number, first).run(look, seen=seen)


class _Examination:
    def __init__(self, place: Storage, manifest: Manifest, number: int, first: int) -> None:
        self._place = place
        self._manifest = manifest
        self._shard: Shard = manifest.shards[number]
        self._first = first
        self._places: list[Place] = []
        self._faults: list[Found] = []
        self._good: list[NDArray[np.int64]] = []
        self._lengths: set[int] = set()
        self._index: Index | None = None
        self._starts: NDArray[np.int64] | None = None  # where the records must be

    def run(self, look: Contents | None, *, seen: Callable[[int], None]) -> Examined:
        shard = self._shard
        is_indexed = self._load_index()
        try:
            content = Content(self._place, shard.file, seen=seen)
        except MissingFileError:
            self._add(None, self._first, MISSING, shard.examples)
            return Examined(tuple(self._places), 0, True, True, False, is_indexed)
        if content.size != shard.bytes:
            self._add(None, None, f"it has {content.size} bytes; the manifest says {shard.bytes}")
        if self._manifest.layout != FIXED:
            self._starts = None if self._index is None else self._index.offsets[:-1]
        else:  # in a file that was cut, up to the first record that is missing
            width = shard.smallest + OVERHEAD_BYTES
            self._starts = np.arange(min(shard.examples, content.size // width + 1), dtype=np.int64) * width
        wrong_in_index = self._read(content, look)
        good = np.concatenate([np.zeros(0, np.int64), *self._good])
        sound = len(good) if self._starts is None else self._compare(good, content.size)
        if self._starts is None:
            self._number_faults(good)
        if wrong_in_index:
            assert shard.index is not None
            said = f"the index differs from the shard in {len(wrong_in_index)} examples"
            self._places.append(Place(shard.index.file, None, self._first + wrong_in_index[0], said))
        is_described = self._is_described(content, len(good))
        is_indexed = is_indexed and not wrong_in_index and (self._index is None or len(good) == sound == shard.examples)
        return Examined(tuple(self._places), sound, False, bool(self._faults), is_described, is_indexed)

    def _add(self, offset: int | None, example: int | None, problem: str, examples: int = 0) -> None:
        self._places.append(Place(self._shard.file, offset, example, problem, examples))

    def _load_index(self) -> bool:
        if self._shard.index is None:
            return True
        try:
            self._index = stored_index(self._place, self._manifest, self._shard)
        except MissingFileError:
            self._places.append(Place(self._shard.index.file, None, None, MISSING))
        except CorruptDataError as error:
            self._places.append(Place(self._shard.index.file, None, None, str(error).rstrip(".")))
        return self._index is not None

    def _read(self, content: Content, look: Contents | None) -> list[int]:
        """Read the file; return the examples for which index and file differ."""
        wrong: list[int] = []
        for batch in batches(walk(content)):
            self._note([found for found in batch if found.payload is None])
            whole = [found for found in batch if found.payload is not None]
            if look is not None and whole:
                rows = look.of([found.payload or b"" for found in whole])
                for row, problem in rows.problems.items():
                    self._note([whole[row]._replace(payload=None, problem=problem)])
                kept = [row for row in range(len(whole)) if row not in rows.problems]
                whole = [whole[row] for row in kept]
                wrong += self._unlike(whole, rows.columns, kept)
            self._good.append(np.array([found.offset for found in whole], np.int64))
            self._lengths.update((min(sizes), max(sizes)) if (sizes := [found.size for found in whole]) else ())
        self._faults.sort()
        return wrong

    def _note(self, faults: list[Found]) -> None:
        self._faults += faults[: max(0, _MOST_FAULTS - len(self._faults))]

    def _unlike(self, whole: list[Found], columns: Mapping[str, NDArray[Any]], kept: list[int]) -> list[int]:
        if self._index is None or self._starts is None or not whole or not len(self._starts):
            return []
        offsets = np.array([found.offset for found in whole], np.int64)
        numbers = np.minimum(np.searchsorted(self._starts, offsets), len(self._starts) - 1)
        known = self._starts[numbers] == offsets
        rows, numbers = np.asarray(kept)[known], numbers[known]
        differ = np.zeros(len(numbers), bool)
        for key, values in columns.items():
            stored, real = self._index.columns[key][numbers], values[rows]
            if stored.tobytes() != real.tobytes():  # as bytes: a NaN is like itself
                differ |= np.array([a.tobytes() != b.tobytes() for a, b in zip(stored, real, strict=True)], bool)
        return [int(number) for number in numbers[differ]]

    def _compare(self, good: NDArray[np.int64], size: int) -> int:
        """Record the faults of expected records that are missing, and return the number of the others."""
        assert self._starts is not None
        starts = self._starts
        is_there = np.isin(starts, good, assume_unique=True)
        offsets = np.array([fault.offset for fault in self._faults], np.int64)
        explained: set[int] = set()
        bad = np.flatnonzero(~is_there)
        for number in bad[:MOST_PLACES].tolist():
            start = int(starts[number])
            cause = int(np.searchsorted(offsets, start, side="right")) - 1
            problem = "no record begins here, where one must"
            if start >= size:
                problem = "the file ends before it"
            elif cause >= 0 and start < self._faults[cause].offset + self._faults[cause].size:
                problem = self._faults[cause].problem
                explained.add(cause)
            self._add(start, self._first + number, problem, 1)
        left = len(bad) - MOST_PLACES
        if left > 0:
            number = int(bad[MOST_PLACES])
            self._add(int(starts[number]), self._first + number, "this one and others, in a long list", left)
        beyond = self._shard.examples - len(starts)
        if beyond > 0:
            self._add(size, self._first + len(starts), "the file ends before it", beyond)
        if left <= 0:
            for place, fault in enumerate(self._faults[:MOST_PLACES]):
                if place not in explained:
                    self._add(fault.offset, None, fault.problem)
        strays = good[~np.isin(good, starts, assume_unique=True)]
        if len(strays):
            self._add(int(strays[0]), None, f"{len(strays)} records, of which this is the first, are in no index")
        return int(is_there.sum())

    def _number_faults(self, good: NDArray[np.int64]) -> None:
        """Record faults without an index, so that numbers of examples are known up to the first fault only."""
        for place, fault in enumerate(self._faults[:MOST_PLACES]):
            number = self._first + int(np.searchsorted(good, fault.offset)) if not place else None
            self._add(fault.offset, number, fault.problem, 1)
        if len(self._faults) > MOST_PLACES:
            fault = self._faults[MOST_PLACES]
            self._add(fault.offset, None, "this one and others, in a long list", len(self._faults) - MOST_PLACES)

    def _is_described(self, content: Content, count: int) -> bool:
        """Return whether size, checksum and number of records match the manifest; record each difference."""
        shard, crc = self._shard, content.crc()
        is_like = content.size == shard.bytes and crc == shard.crc32c
        if self._faults:
            return is_like
        if count != shard.examples:
            self._add(None, None, f"it has {count} records; the manifest says {shard.examples}")
            return False
        if not is_like and content.size == shard.bytes:
            self._add(None, None, "its records are sound, but not those that were written: its checksum differs")
        lengths = {size - OVERHEAD_BYTES for size in self._lengths} or {0}
        if (min(lengths), max(lengths)) != (shard.smallest, shard.largest):
            said = f"{shard.smallest} to {shard.largest}"
            self._add(None, None, f"its records have {min(lengths)} to {max(lengths)} bytes; the manifest says {said}")
            return False
        return is_like
