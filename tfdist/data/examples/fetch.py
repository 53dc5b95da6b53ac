"""Columns of examples by their numbers: checked, with corrupt ones replaced or refused. Loads no TensorFlow."""

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples import numpy_reader
from tfdist.data.examples.checked_examples import Binding, Examples, payload_of
from tfdist.data.format import record_framing as records
from tfdist.data.format.record_forms import Forms
from tfdist.data.format.schema import EXTENT, FIXED, Schema, indexed_values, texts_of
from tfdist.errors import CorruptDataError, TfdistError
from tfdist.storage.directory import Storage

_FREED_BYTES = 31 << 20  # glibc's thresholds follow pieces below 32 MiB
_KEPT = 16  # threads that read may fail at once
#: the column of whole payloads, which have to be parsed (layout generic); no feature can have this name
PAYLOAD = ""

_SAMPLE = 32
_MOST_LENGTHS = 8  # of records that are read together by forms

_logger = logging.getLogger(__name__)
_Array = NDArray[Any]
_Read = Callable[[NDArray[np.int64], _Array], tuple[dict[str, _Array], _Array]]


class Failures:
    """The errors that the functions of a pipeline raised, which TensorFlow only quotes; threads may share one."""

    def __init__(self) -> None:
        self._last: list[TfdistError] = []
        self._lock = threading.Lock()

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that the tfdist errors it raises are kept here."""

        @functools.wraps(function)
        def noting(*args: Any) -> Any:
            try:
                return function(*args)
            except TfdistError as error:
                with self._lock:
                    self._last = [*self._last[1 - _KEPT :], error]
                text = str(error)
                kind = type(error)
            # TensorFlow quotes the whole traceback, in which the cause is of no use
            raise kind(text)

        return noting

    def behind(self, text: str) -> TfdistError | None:
        """Return the kept error that a text quotes; None if it quotes none."""
        with self._lock:
            return next((error for error in reversed(self._last) if f"{type(error).__name__}: {error}" in text), None)


def keep_freed_memory() -> None:
    """Let this process keep the memory of a batch for the next one: up to 64 MiB for each thread that makes batches.

    glibc returns all but 128 KiB to the system at once, and for each batch the system maps and clears other pages: half
    of the time that reading pictures takes. It keeps twice as much as the largest piece that was ever freed; an
    untouched one will do. Other allocators are not concerned.
    """
    np.empty(_FREED_BYTES, np.uint8)


class MappedBytes:
    """Local files, mapped into memory; `tfdist.data.examples.numpy_reader` explains the arguments."""

    def __init__(self, paths: Sequence[str], binding: Binding) -> None:
        self.paths = list(paths)
        self._binding = binding

    @cached_property
    def _maps(self) -> numpy_reader.Maps:
        return numpy_reader.Maps(self.paths)

    def rows(self, file: _Array, offset: _Array, check: _Array, length: int) -> tuple[_Array, _Array]:
        """Return payloads of one length, uint8 ``[n, length]``, and a mask of the sound ones."""
        with self._reading(file):
            return numpy_reader.read_rows(self._maps, file, offset, check, length)

    def records(
        self, file: _Array, offset: _Array, length: _Array, start: _Array, size: _Array, check: _Array
    ) -> tuple[list[bytes], _Array]:
        """Return a part of each payload, and a mask of the sound ones."""
        with self._reading(file):
            return numpy_reader.read_records(self._maps, file, offset, length, start, size, check)

    @contextmanager
    def _reading(self, file: _Array) -> Iterator[None]:
        """Do the work of `Binding.reading`, with the states in which the files were mapped: no file is asked twice."""
        with self._binding.explained():
            yield
            numbers = np.unique(file).tolist()
            states = self._maps.states(numbers)
        self._binding.require_states(states)
        if len(states) < len(numbers):  # unmapped meanwhile
            self._binding.require([number for number in numbers if number not in states])


class RemoteBytes:
    """Files of a store, fetched a batch at a time; its methods are those of `MappedBytes`."""

    def __init__(self, storage: Storage, names: Sequence[str], binding: Binding) -> None:
        self._storage = storage
        self._binding = binding
        self._names = list(names)

    def rows(self, file: _Array, offset: _Array, check: _Array, length: int) -> tuple[_Array, _Array]:
        found, ok = self._payloads(file, offset, np.full(len(file), length, np.int64), check)
        rows = np.zeros((len(found), length), np.uint8)
        for row, payload in zip(rows, found, strict=True):
            if len(payload) == length:
                row[:] = np.frombuffer(payload, np.uint8)
        return rows, ok

    def records(
        self, file: _Array, offset: _Array, length: _Array, start: _Array, size: _Array, check: _Array
    ) -> tuple[list[bytes], _Array]:
        found, ok = self._payloads(file, offset, length, check)
        ok &= start.astype(np.int64) + size <= length
        return [p[int(s) : int(s) + int(n)] for p, s, n in zip(found, start, size, strict=True)], ok

    def _payloads(self, file: _Array, offset: _Array, length: _Array, check: _Array) -> tuple[list[bytes], _Array]:
        ranges = [
            (self._names[number], int(begin), int(size) + records.OVERHEAD_BYTES)
            for number, begin, size in zip(file, offset, length, strict=True)
        ]
        with self._binding.reading(np.unique(file).tolist()):
            data = self._storage.read_ranges(ranges)
        ok = np.ones(len(data), bool)
        found = []
        for place, frame in enumerate(data):
            payload = payload_of(frame) if check[place] else frame[records.HEADER_BYTES : -4]
            ok[place] = payload is not None
            found.append(payload or b"")
        return found, ok


class Fetcher:
    """Columns of examples by their numbers."""

    def __init__(self, examples: Examples, source: MappedBytes | RemoteBytes, *, verify: str, skip: bool) -> None:
        self.examples = examples
        self.source = source
        self.verify = verify
        #: the errors that reading raised
        self.failures = Failures()
        self.skip = skip
        # made of zeros, which take no memory until they are touched
        self._seen = np.zeros(len(examples), bool) if verify == "first" else np.full(1, verify == "never")
        self._remembers = verify == "first"
        self._reported: set[int] = set()
        self._stand_in: int | None = None
        self._lock = threading.Lock()
        self._texts = texts_of(examples.schema, examples.manifest.layout)
        values = indexed_values(examples.schema, examples.manifest.layout)
        self.values = values if examples.manifest.layout == EXTENT else []

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """The numbers of a few examples from all over the directory whose records are sound."""
        ids = np.unique(np.linspace(0, len(self.examples) - 1, _SAMPLE, dtype=np.int64))
        return ids[self._read(ids, np.ones(len(ids), bool))[1]]

    @property
    def names(self) -> list[str]:
        """The names of the columns, in the order in which `__call__` returns them."""
        layout = self.examples.manifest.layout
        return [PAYLOAD] if layout not in (FIXED, EXTENT) else list(self.examples.schema)

    def __call__(self, ids: NDArray[np.int64]) -> tuple[dict[str, _Array], NDArray[np.float32]]:
        """Return the columns of examples, and the weight of each: 0 where another example replaces it."""
        return self._sound(ids, self._read)

    def forms_of(self, schema: Schema) -> Forms | None:
        """Return a parser for `parsed`, if it parses all records of a sample, which have few forms."""
        forms = Forms(schema)
        sample = self.sample
        if not len(sample):
            return None
        found, _ = self._parsed(forms, sample, np.zeros(len(sample), bool))
        return forms if forms.are_few and found[PAYLOAD].all() else None

    def parsed(self, forms: Forms, ids: NDArray[np.int64]) -> tuple[dict[str, _Array], NDArray[np.float32]]:
        """Return features of whole payloads as `__call__` does, and as `PAYLOAD` a mask of those that were parsed."""
        return self._sound(ids, functools.partial(self._parsed, forms))

    def payloads(self, ids: NDArray[np.int64]) -> tuple[_Array, NDArray[np.float32]]:
        """Return whole payloads, and the weight of each example."""
        found, weight = self._sound(ids, self._payloads)
        return found[PAYLOAD], weight

    def _sound(self, ids: NDArray[np.int64], read: _Read) -> tuple[dict[str, _Array], NDArray[np.float32]]:
        weight = np.ones(len(ids), np.float32)
        check = ~self._seen[ids] if self._remembers else np.full(len(ids), not self._seen[0])
        found, ok = read(ids, check)
        if not ok.all():
            self._report(ids[~ok])
            weight[~ok] = 0.0
            ids = np.where(ok, ids, int(ids[ok][0]) if ok.any() else self._any_sound(int(ids[0])))
            found, _ = read(ids, np.zeros(len(ids), bool))
        if self._remembers:
            self._seen[ids] = True
        return found, weight

    def _read(self, ids: NDArray[np.int64], check: _Array) -> tuple[dict[str, _Array], _Array]:
        examples = self.examples
        file, offset, length = examples.locate(ids)
        if examples.template is not None:
            rows, ok = self.source.rows(file, offset, check, examples.template.length)
            return examples.template.decode(rows), ok
        if examples.manifest.layout != EXTENT:
            return self._payloads(ids, check)
        columns, ok = self.values_of(ids), np.ones(len(ids), bool)
        for name in self._texts:
            start, size = self.extent(name, ids)
            # a payload has one checksum, so it is enough to look at it once
            looks = check if name == self._texts[0] else np.zeros_like(check)
            found, sound = self.source.records(file, offset, length, start, size, looks)
            columns[name] = objects(found)
            ok &= sound
        return {name: columns[name] for name in self.names}, ok

    def _payloads(self, ids: NDArray[np.int64], check: _Array) -> tuple[dict[str, _Array], _Array]:
        file, offset, length = self.examples.locate(ids)
        payloads, ok = self.source.records(file, offset, length, np.zeros_like(length), length, check)
        return {PAYLOAD: objects(payloads)}, ok

    def _parsed(self, forms: Forms, ids: NDArray[np.int64], check: _Array) -> tuple[dict[str, _Array], _Array]:
        file, offset, length = self.examples.locate(ids)
        lengths = np.unique(length).tolist()
        if len(lengths) == 1:
            rows, ok = self.source.rows(file, offset, check, lengths[0])
            columns, done = forms(rows)
            return {**columns, PAYLOAD: done}, ok
        found, ok = {**forms.zeros(len(ids)), PAYLOAD: np.zeros(len(ids), bool)}, np.zeros(len(ids), bool)
        if len(lengths) > _MOST_LENGTHS:  # records of few forms have few; which are sound must be known all the same
            return found, self._payloads(ids, check)[1]
        for size in lengths:
            at = np.flatnonzero(length == size)
            rows, ok[at] = self.source.rows(file[at], offset[at], check[at], size)
            columns, done = forms(rows)
            for name, column in {**columns, PAYLOAD: done}.items():
                found[name][at] = column
        return found, ok

    def values_of(self, ids: NDArray[np.int64]) -> dict[str, _Array]:
        dtypes = {name: self.examples.schema[name].dtype for name in self.values}
        return {
            name: self.examples.column(f"value:{name}")[ids].astype(dtype, copy=False) for name, dtype in dtypes.items()
        }

    def extent(self, name: str, ids: NDArray[np.int64]) -> tuple[_Array, _Array]:
        """Return the first byte and the length of a text in each payload, both int64."""
        start, size = (self.examples.column(f"{what}:{name}")[ids].astype(np.int64) for what in ("start", "size"))
        return start, size

    def _report(self, bad: NDArray[np.int64]) -> None:
        file, offset, _ = self.examples.locate(bad)
        words = [self.examples.corrupt(*map(int, found)) for found in zip(bad, file, offset, strict=True)]
        if not self.skip:
            more = f" (and {len(words) - 1} more in this batch)" if len(words) > 1 else ""
            raise CorruptDataError(words[0] + more, path=self.examples.manifest.shards[int(file[0])].file)
        with self._lock:
            for number, word in zip(bad.tolist(), words, strict=True):
                if number not in self._reported:
                    self._reported.add(number)
                    _logger.warning("%s It counts with weight 0.", word.split(" `tfdist")[0])

    def _any_sound(self, near: int) -> int:
        for number in stand_ins(near, len(self.examples), self._stand_in):
            if self._read(np.array([number]), np.ones(1, bool))[1][0]:
                self._stand_in = number  # the next batch of a long corrupt stretch need not look for it
                return number
        raise CorruptDataError(f"no example of {self.examples.url} is sound.", path=self.examples.url)


def stand_ins(near: int, count: int, last: int | None) -> Iterator[int]:
    """Yield the example that stood in last, and then all others, from the one after a corrupt one on."""
    if last is not None:
        yield last
    for step in range(1, count):
        yield (near + step) % count


def objects(values: list[bytes]) -> NDArray[np.object_]:
    return np.fromiter(values, object, len(values))  # an assignment would look into each


def source_of(examples: Examples) -> MappedBytes | RemoteBytes:
    if (paths := examples.paths) is not None:
        return MappedBytes(paths, examples.binding)
    return RemoteBytes(examples.storage, [shard.file for shard in examples.manifest.shards], examples.binding)
