"""A reader of records at known places of local files, in NumPy: the reference for the ops of `tfdist.native`.

Whatever the arguments and the files hold, nothing outside of a file is read. A record is sound exactly if it is in its
file and, if it is checked, its length and both checksums fit; nothing is returned of others. Results are copies, so
they outlive their file.
"""

import ctypes
import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.record_framing import HEADER_BYTES, OVERHEAD_BYTES, header, masked_each
from tfdist.errors import ConfigError
from tfdist.storage.files import State, state_of
from tfdist.storage.local_storage import mapped

_MOST_ZEROS = 1 << 30  # bytes of rows that are longer than any file
_HEADER = np.dtype([("length", "<i8"), ("crc", "<u4")])
_LARGE = 4096  # bytes of a part, in the mean
_Ints = NDArray[np.int64]
_Mask = NDArray[np.bool_]
_Shards = Mapping[int, NDArray[np.uint8]]
_header = lru_cache(maxsize=4096)(header)


class Maps:
    """Files mapped into memory when they are first read, and again when they were replaced, cut or extended.

    Threads may share one.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._kept: dict[int, tuple[State, NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> NDArray[np.uint8]:
        path = self._paths[number]
        with self._lock:
            kept = self._kept.get(number)
        if kept is not None and kept[0] == state_of(os.stat(path)):
            return kept[1]
        try:
            kept = _map(path)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            self.close()  # a process may have some 65 000 maps
            kept = _map(path)
        with self._lock:
            self._kept[number] = kept
        return kept[1]

    def states(self, numbers: Iterable[int]) -> dict[int, State]:
        """Return the states of files as they were when they were mapped."""
        with self._lock:
            return {number: self._kept[number][0] for number in numbers if number in self._kept}

    def close(self) -> None:
        """Unmap all files; each is mapped again when it is read again."""
        with self._lock:
            self._kept.clear()  # a map ends with the last array that shows it


def _map(path: str) -> tuple[State, NDArray[np.uint8]]:
    # Without O_NONBLOCK opening a pipe would wait for a writer.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not os.path.isfile(f"/proc/self/fd/{file}"):
            raise ConfigError(f"{path!r} is not a regular file; records are read from one.")
        return state_of(about), mapped(file, about.st_size)
    finally:
        os.close(file)


def read_records(
    maps: Maps, file: NDArray[np.int32], offset: _Ints, length: _Ints, start: _Ints, size: _Ints, check: _Mask
) -> tuple[list[bytes], _Mask]:
    """Return a part of the payload of each record, and a mask of the sound records."""
    files, at, lengths, starts, sizes, checks = _vectors(
        maps, file=file, offset=offset, length=length, start=start, size=size, check=check
    )
    shards = {number: maps[number] for number in sorted(set(files.tolist()))}
    ok = _lies(at, lengths, _sizes_of(shards, files))
    ok &= (starts >= 0) & (sizes >= 0) & (starts <= lengths)
    ok &= sizes <= np.where(ok, lengths - np.where(ok, starts, 0), 0)
    inside = np.flatnonzero(ok)
    read = _one_by_one if sizes[inside].sum() > _LARGE * len(inside) else _together
    parts, fits = read(
        shards, files[inside], at[inside] + HEADER_BYTES, lengths[inside], starts[inside], sizes[inside], checks[inside]
    )
    ok[inside] = fits
    if not ok.all():
        sound = dict(zip(inside[fits].tolist(), itertools.compress(parts, fits.tolist()), strict=True))
        parts = [sound.get(place, b"") for place in range(len(files))]
    return parts, ok


def read_rows(
    maps: Maps, file: NDArray[np.int32], offset: _Ints, check: _Mask, length: int
) -> tuple[NDArray[np.uint8], _Mask]:
    length = validation.integer("length", length, minimum=0)
    files, at, checks = _vectors(maps, file=file, offset=offset, check=check)
    shards = {number: maps[number] for number in sorted(set(files.tolist()))}
    largest = max((len(shard) for shard in shards.values()), default=0)
    if length > largest and length * len(files) > _MOST_ZEROS:
        raise ConfigError(f"length is {length} bytes, and the largest file has {largest}; a row must fit into a file.")
    ok = _lies(at, np.full(len(files), min(length, largest + 1), np.int64), _sizes_of(shards, files))
    rows = np.zeros((len(files), length), np.uint8)
    for shard, chosen in _by_shard(shards, files):
        inside = chosen[ok[chosen]]
        if not inside.size:
            continue
        framed = _windows(shard, length + OVERHEAD_BYTES)[at[inside]]
        whole = _are_whole(framed, checks[inside], length)
        ok[inside] = whole
        if whole.all():
            rows[inside] = framed[:, HEADER_BYTES:-4]
        else:
            rows[inside[whole]] = framed[whole, HEADER_BYTES:-4]
    return rows, ok


def _by_shard(shards: _Shards, files: _Ints) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.intp]]]:
    """Yield each file, in the order of numbers, with the positions of its records among the arguments."""
    order = np.argsort(files, kind="stable")
    ends = np.searchsorted(files[order], list(shards), side="right")
    yield from zip(shards.values(), np.split(order, ends[:-1]), strict=bool(shards))


def _one_by_one(
    shards: _Shards, files: _Ints, begins: _Ints, lengths: _Ints, starts: _Ints, sizes: _Ints, checks: _Mask
) -> tuple[list[bytes], _Mask]:
    """Return parts of large payloads that begin at ``begins``, and a mask of the records that are sound or not checked.

    A part is checked while it is in the nearest cache, at a third of the cost of checking after all copies.
    """
    cutters = {number: cutter(shard) for number, shard in shards.items()}
    value, extend = google_crc32c.value, google_crc32c.extend
    parts, heads, tails, crcs, crcs_of_lengths = [], [], [], [], []
    firsts = begins + starts
    spans = (array.tolist() for array in (files, begins, firsts, firsts + sizes, begins + lengths, checks))
    for number, begin, first, last, end, look in zip(*spans, strict=True):
        cut = cutters[number]
        part = cut(slice(first, last))
        parts.append(part)
        if look:
            # the bytes around a part are cut separately: a large part is not copied twice
            head, tail = cut(slice(begin - HEADER_BYTES, first)), cut(slice(last, end + 4))
            heads.append(head[:HEADER_BYTES])
            tails.append(tail[-4:])
            crcs_of_lengths.append(value(head[:8]))
            crcs.append(extend(extend(value(head[HEADER_BYTES:]), part), tail[:-4]))
    fits, found = ~checks, np.frombuffer(b"".join(heads), _HEADER)
    fits[checks] = (found["length"] == lengths[checks]) & (_masked(crcs_of_lengths) == found["crc"])
    fits[checks] &= _masked(crcs) == np.frombuffer(b"".join(tails), "<u4")
    return parts, fits


def _together(
    shards: _Shards, files: _Ints, begins: _Ints, lengths: _Ints, starts: _Ints, sizes: _Ints, checks: _Mask
) -> tuple[list[bytes], _Mask]:
    """Do the work of `_one_by_one` for small payloads, mostly for a whole file at once."""
    parts, fits, value = [b""] * len(files), ~checks, google_crc32c.value
    for shard, chosen in _by_shard(shards, files):
        cut, firsts = cutter(shard), begins[chosen] + starts[chosen]
        found = [cut(span) for span in map(slice, firsts.tolist(), (firsts + sizes[chosen]).tolist())]
        for place, part in zip(chosen.tolist(), found, strict=True):
            parts[place] = part
        looks = checks[chosen]
        checked = chosen[looks]
        if not checked.size:
            continue
        if (sizes[checked] == lengths[checked]).all():
            crcs = list(map(value, itertools.compress(found, looks.tolist())))
        else:
            ends = (begins[checked] + lengths[checked]).tolist()
            crcs = [value(cut(span)) for span in map(slice, begins[checked].tolist(), ends)]
        distinct, which = np.unique(lengths[checked], return_inverse=True)
        headers = np.frombuffer(b"".join(map(_header, distinct.tolist())), np.uint8).reshape(-1, HEADER_BYTES)
        right = (_windows(shard, HEADER_BYTES)[begins[checked] - HEADER_BYTES] == headers[which]).all(axis=1)
        stored = _windows(shard, 4)[begins[checked] + lengths[checked]].view("<u4")[:, 0]
        fits[checked] = right & (_masked(crcs) == stored)
    return parts, fits


def _masked(crcs: list[int]) -> NDArray[np.uint32]:
    return masked_each(np.array(crcs, np.uint32))


def cutter(shard: NDArray[np.uint8]) -> Callable[[slice], bytes]:
    """Return a function that cuts bytes out of a file; a memory map does so at half the cost of NumPy."""
    content: Any = shard.base
    if isinstance(content, ctypes.Array):
        return cast(Callable[[slice], bytes], content.__getitem__)
    return lambda span: shard.data[span].tobytes()


def _windows(shard: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Return the file's bytes from each position on, ``[positions, width]``, without a copy."""
    # NumPy's sliding_window_view makes the same at ten times the cost.
    return np.ndarray((len(shard) - width + 1, width), np.uint8, buffer=shard, strides=(1, 1))


def _are_whole(framed: NDArray[np.uint8], checks: _Mask, length: int) -> _Mask:
    """Return a mask of records, uint8 ``[n, length + 16]``, with right lengths and checksums, or without a check."""
    if not checks.any():
        return np.ones(len(framed), np.bool_)
    fits = (framed[:, :HEADER_BYTES] == np.frombuffer(_header(length), np.uint8)).all(axis=1)
    stored = np.ascontiguousarray(framed[:, -4:]).view("<u4")[:, 0]
    crcs = np.zeros(len(framed), np.uint32)  # the CRC-32C of nothing
    if length:  # a view whose items are bytes is the cheapest way to cut
        payloads = np.ndarray(len(framed), f"V{length}", framed, HEADER_BYTES, framed.strides[:1])
        crcs = np.fromiter(map(google_crc32c.value, payloads.tolist()), np.uint32, len(framed))
    return np.asarray(fits & (masked_each(crcs) == stored) | ~checks)


def _vectors(maps: Maps, **vectors: Any) -> list[NDArray[Any]]:
    """Return the arguments as vectors of one length, and refuse file numbers out of range."""
    # 64 bits also for the numbers of files: what is out of range must not become something else on its way here.
    dtypes: Mapping[str, Any] = {"check": np.bool_}
    arrays = {name: np.asarray(values, dtypes.get(name, np.int64)) for name, values in vectors.items()}
    count = arrays["file"].size
    for name, array in arrays.items():
        if array.shape != (count,):
            raise ConfigError(f"{name} has shape {array.shape}, file has {count} values; each must be one per record.")
    files = arrays["file"]
    if count and not (files.min() >= 0 and files.max() < len(maps)):
        raise ConfigError(f"file has numbers from {files.min()} to {files.max()}; there are {len(maps)} files.")
    return list(arrays.values())


def _sizes_of(shards: _Shards, files: _Ints) -> _Ints:
    sizes = np.zeros(max(shards, default=-1) + 1, np.int64)
    for number, shard in shards.items():
        sizes[number] = len(shard)
    return sizes[files]


def _lies(offset: _Ints, length: _Ints, size: _Ints) -> _Mask:
    """Return a mask of the records that fit into their file with their framing; differences cannot overflow."""
    room = size - OVERHEAD_BYTES
    fits = (offset >= 0) & (length >= 0) & (length <= room)
    return fits & (offset <= room - np.where(fits, length, 0))
