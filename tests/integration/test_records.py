"""Records at known places: what NumPy and the native ops both promise, for whatever arguments and files hold."""

import os
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist import native
from tfdist.data.examples import numpy_reader
from tfdist.native import Records

pytestmark = pytest.mark.quick

SIZES = (0, 1, 7, 8, 9, 60000, 1535, 1536, 1537, 164, 0, 3)
HUGE = (2**63 - 1, 2**63 - 12, 2**62, 2**32, 2**31, -1, -(2**63), -16)


def crc(data: bytes) -> bytes:
    value = google_crc32c.value(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) % 2**32)


def framed(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + crc(length) + payload + crc(payload)


def payloads(sizes: Sequence[int], seed: int = 0) -> list[bytes]:
    generator = np.random.default_rng(seed)
    return [generator.bytes(size) for size in sizes]


@dataclass
class Shard:
    """A file of records."""

    path: Path
    records: list[bytes]
    offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        whole = [framed(record) for record in self.records]
        self.offsets = [sum(map(len, whole[:i])) for i in range(len(whole))]
        self.path.write_bytes(b"".join(whole))

    @property
    def lengths(self) -> list[int]:
        return [len(record) for record in self.records]


class Reader(Protocol):
    """One of the two."""

    def records(self, paths: Sequence[Path], **vectors: Any) -> tuple[list[bytes], list[bool]]: ...

    def rows(self, paths: Sequence[Path], length: int, **vectors: Any) -> tuple[list[bytes], list[bool]]: ...


class Numpy:
    """The reference; maps stay from call to call."""

    def __init__(self) -> None:
        self.maps: dict[tuple[Path, ...], numpy_reader.Maps] = {}

    def of(self, paths: Sequence[Path]) -> numpy_reader.Maps:
        return self.maps.setdefault(tuple(paths), numpy_reader.Maps(paths))

    def records(self, paths: Sequence[Path], **vectors: Any) -> tuple[list[bytes], list[bool]]:
        parts, ok = numpy_reader.read_records(self.of(paths), **vectors)
        assert ok.dtype == np.bool_
        return parts, ok.tolist()

    def rows(self, paths: Sequence[Path], length: int, **vectors: Any) -> tuple[list[bytes], list[bool]]:
        rows, ok = numpy_reader.read_rows(self.of(paths), **vectors, length=length)
        assert (rows.dtype, rows.shape, ok.dtype) == (np.uint8, (ok.size, length), np.bool_)
        return [row.tobytes() for row in rows], ok.tolist()


@dataclass
class Native:
    """The ops."""

    ops: Records

    def records(self, paths: Sequence[Path], **vectors: Any) -> tuple[list[bytes], list[bool]]:
        parts, ok = self.ops.read_records(list(map(str, paths)), **tensors(vectors))
        return parts.numpy().tolist(), ok.numpy().tolist()

    def rows(self, paths: Sequence[Path], length: int, **vectors: Any) -> tuple[list[bytes], list[bool]]:
        rows, ok = self.ops.read_rows(list(map(str, paths)), **tensors(vectors), length=length)
        assert rows.shape == (len(ok), length)
        return [row.tobytes() for row in rows.numpy()], ok.numpy().tolist()


def tensors(vectors: dict[str, Any]) -> dict[str, Any]:
    dtypes = {"file": np.int32, "check": np.bool_}
    return {name: np.array(values, dtypes.get(name, np.int64)) for name, values in vectors.items()}


@pytest.fixture(scope="module")
def ops() -> Iterator[Records]:
    loaded = native.records()  # a process can load one library with ops of these names
    assert loaded is not None
    yield loaded
    loaded.unmap()


@pytest.fixture(params=["numpy, together", "numpy, one by one", "native"], scope="module")
def reader(request: pytest.FixtureRequest, ops: Records) -> Iterator[Reader]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "native":
            patch.setattr(numpy_reader, "_LARGE", 1 << 40 if "together" in request.param else -1)
        yield Native(ops) if request.param == "native" else Numpy()


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path / "data-00000.tfrecord", payloads(SIZES))


def whole(shard: Shard, *, check: bool = True, file: int = 0) -> dict[str, list[Any]]:
    n = len(shard.records)
    return {
        "file": [file] * n,
        "offset": list(shard.offsets),
        "length": shard.lengths,
        "start": [0] * n,
        "size": shard.lengths,
        "check": [check] * n,
    }


def one(offset: int, length: int, *, start: int = 0, size: int | None = None, check: bool = True) -> dict[str, Any]:
    size = length if size is None else size
    values = {"file": 0, "offset": offset, "length": length, "start": start, "size": size, "check": check}
    return {name: [value] for name, value in values.items()}


def row(offset: int, *, check: bool = True) -> dict[str, Any]:
    return {"file": [0], "offset": [offset], "check": [check]}


@pytest.mark.parametrize("check", [True, False])
def test_records_of_all_sizes_in_any_order(reader: Reader, shard: Shard, check: bool) -> None:
    order = np.random.default_rng(1).permutation(3 * len(SIZES)) % len(SIZES)
    asked = {name: [values[i] for i in order] for name, values in whole(shard, check=check).items()}
    assert reader.records([shard.path], **asked) == ([shard.records[i] for i in order], [True] * len(order))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 164, 5000])
def test_rows_of_several_files(reader: Reader, tmp_path: Path, length: int) -> None:
    shards = [Shard(tmp_path / f"{i}", payloads([length] * (50 + i), seed=i)) for i in range(3)]
    chosen = np.random.default_rng(2).integers(0, [[3], [50]], (2, 300)).T.tolist()
    asked = {
        "file": [s for s, _ in chosen],
        "offset": [shards[s].offsets[i] for s, i in chosen],
        "check": [i % 3 > 0 for _, i in chosen],
    }
    rows, ok = reader.rows([shard.path for shard in shards], length, **asked)
    assert rows == [shards[s].records[i] for s, i in chosen]
    assert all(ok)


def test_parts_of_payloads(reader: Reader, shard: Shard) -> None:
    asked = whole(shard)
    asked["start"] = [n // 3 for n in shard.lengths]
    asked["size"] = [n // 2 for n in shard.lengths]
    parts = [record[len(record) // 3 :][: len(record) // 2] for record in shard.records]
    assert reader.records([shard.path], **asked) == (parts, [True] * len(parts))


def test_nothing_asked_for(reader: Reader, shard: Shard) -> None:
    none = dict.fromkeys(("file", "offset", "length", "start", "size", "check"), ())
    assert reader.records([shard.path], **none) == ([], [])
    assert reader.records([], **none) == ([], [])
    assert reader.rows([], 5, file=[], offset=[], check=[]) == ([], [])
    assert reader.rows([], 2**40, file=[], offset=[], check=[]) == ([], [])


@pytest.mark.parametrize("size", [0, 1, 9, 60000])
def test_a_flipped_bit_is_seen_wherever_it_is(reader: Reader, tmp_path: Path, size: int) -> None:
    shard = Shard(tmp_path / "a", payloads([20, size, 20]))
    intact, begin = bytearray(shard.path.read_bytes()), shard.offsets[1]
    places = [*range(begin, begin + 13), *range(shard.offsets[2] - 5, shard.offsets[2]), begin + 12 + size // 2]
    for place in places:
        broken = bytearray(intact)
        broken[place] ^= 1 << place % 8
        shard.path.write_bytes(broken)
        hit = begin <= place < shard.offsets[2]
        parts, ok = reader.records([shard.path], **whole(shard))
        assert ok == [True, not hit, True]
        assert parts == [shard.records[0], b"" if hit else shard.records[1], shard.records[2]]
        rows, ok = reader.rows([shard.path], size, **row(begin))
        assert (rows, ok) == ([bytes(size) if hit else shard.records[1]], [not hit])
        _, ok = reader.records([shard.path], **whole(shard, check=False))
        assert ok == [True] * 3


def test_what_is_not_checked_is_returned_as_it_is(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(100)))
    assert reader.records([path], **one(3, 50, check=False)) == ([bytes(range(15, 65))], [True])
    assert reader.rows([path], 50, **row(3, check=False)) == ([bytes(range(15, 65))], [True])


def test_the_last_byte_of_a_file_and_the_one_behind_it(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "a"
    for length in (0, 1, 100):
        path.write_bytes(bytes(length + 16))
        for offset, fits in ((0, True), (1, False), (-1, False)):
            assert reader.records([path], **one(offset, length, check=False))[1] == [fits]
            assert reader.rows([path], length, **row(offset, check=False))[1] == [fits]
        assert reader.records([path], **one(0, length + 1, check=False)) == ([b""], [False])
        assert reader.rows([path], length + 1, **row(0, check=False)) == ([bytes(length + 1)], [False])


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("value", HUGE)
def test_absurd_numbers_are_records_that_are_not_ok(reader: Reader, shard: Shard, value: int, check: bool) -> None:
    at, length = shard.offsets[5], shard.lengths[5]
    for asked in (
        one(value, length, check=check),
        one(at, value, size=0, check=check),
        one(at, value, check=check),
        one(value, value, check=check),
        one(at, length, start=value, size=0, check=check),
        one(at, length, size=value, check=check),
        one(at, length, start=value, size=value, check=check),
        one(at, length, start=1, size=length, check=check),
    ):
        assert reader.records([shard.path], **asked) == ([b""], [False])
    assert reader.rows([shard.path], 5, **row(value, check=check)) == ([bytes(5)], [False])


@pytest.mark.parametrize("length", [-1, 2**62, 2**63 - 1, 2**50])
def test_rows_of_an_absurd_length_take_no_memory(reader: Reader, shard: Shard, length: int) -> None:
    with pytest.raises(Exception, match="length") as caught:
        reader.rows([shard.path], length, **{name: values * 3 for name, values in row(0).items()})
    assert isinstance(caught.value, ValueError) or "InvalidArgument" in type(caught.value).__name__


def test_rows_that_are_longer_than_the_file_are_not_ok(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert reader.rows([tmp_path / "a"], 1000, **row(0)) == ([bytes(1000)], [False])


@pytest.mark.parametrize("name", ["file", "offset", "length", "start", "size", "check"])
def test_vectors_of_different_lengths_are_refused(reader: Reader, shard: Shard, name: str) -> None:
    asked = whole(shard)
    asked[name] = asked[name][1:]
    with pytest.raises(Exception, match=r"one per record|has shape"):
        reader.records([shard.path], **asked)
    asked[name] = [asked[name]]
    with pytest.raises(Exception, match=r"a vector|one per record|rank"):
        reader.records([shard.path], **asked)
    if name in row(0):
        with pytest.raises(Exception, match=r"one per record|has shape"):
            reader.rows([shard.path], 5, **{**row(0), name: []})


@pytest.mark.parametrize("number", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_number_that_no_file_has_is_refused(reader: Reader, shard: Shard, number: int) -> None:
    with pytest.raises(Exception, match="there are 1 files"):
        reader.records([shard.path], **whole(shard, file=number))
    with pytest.raises(Exception, match="there are 1 files"):
        reader.rows([shard.path], 5, file=[0, number], offset=[0, 0], check=[True, True])


def test_files_that_cannot_be_read_are_named(reader: Reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, message in (("absent", "absent"), ("pipe", "not a regular file"), ("folder", "not a regular file")):
        with pytest.raises(Exception, match=message):
            reader.records([tmp_path / name], **one(0, 1))


def test_an_empty_file_has_no_record(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert reader.records([tmp_path / "a"], **one(0, 0, check=False)) == ([b""], [False])
    assert reader.rows([tmp_path / "a"], 0, **row(0, check=False)) == ([b""], [False])


def test_only_files_that_are_asked_for_are_opened(reader: Reader, shard: Shard, tmp_path: Path) -> None:
    paths = [tmp_path / "absent", shard.path]
    assert reader.records(paths, **whole(shard, file=1)) == (shard.records, [True] * len(SIZES))


def test_a_path_in_any_script(reader: Reader, tmp_path: Path) -> None:
    shard = Shard(tmp_path / "Ünïcode 数据 \N{SNOWMAN}.tfrecord", payloads([5]))
    assert reader.records([shard.path], **whole(shard)) == (shard.records, [True])


def test_a_file_that_is_replaced_is_read_anew(reader: Reader, tmp_path: Path) -> None:
    shard = Shard(tmp_path / "a", payloads([100] * 3))
    asked = whole(shard)
    assert reader.records([shard.path], **asked)[0] == shard.records
    new = Shard(tmp_path / "b", payloads([100] * 3, seed=9))
    os.replace(new.path, shard.path)
    assert reader.records([shard.path], **asked)[0] == new.records
    assert reader.rows([shard.path], 100, **row(0))[0] == new.records[:1]


def test_a_file_that_is_cut_short_or_extended(reader: Reader, tmp_path: Path) -> None:
    shard = Shard(tmp_path / "a", payloads([60000] * 3))
    asked, content = whole(shard), shard.path.read_bytes()
    assert reader.records([shard.path], **asked)[1] == [True] * 3
    os.truncate(shard.path, len(content) - 1)
    assert reader.records([shard.path], **asked)[1] == [True, True, False]
    os.truncate(shard.path, 0)
    assert reader.records([shard.path], **asked) == ([b""] * 3, [False] * 3)
    assert reader.rows([shard.path], 60000, **row(0))[1] == [False]
    shard.path.write_bytes(content)
    assert reader.records([shard.path], **asked) == (shard.records, [True] * 3)


def test_several_threads_and_a_file_that_is_replaced_meanwhile(reader: Reader, tmp_path: Path) -> None:
    shard = Shard(tmp_path / "a", payloads([164] * 200))
    other = Shard(tmp_path / "b", payloads([164] * 200, seed=1))
    asked, failures, done = whole(shard), [], threading.Event()
    both = {tuple(shard.records), tuple(other.records)}
    contents = [shard.path.read_bytes(), other.path.read_bytes()]

    def read() -> None:
        while not done.is_set():
            parts, ok = reader.records([shard.path], **asked)
            if tuple(parts) not in both or not all(ok):
                failures.append(ok)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 50)  # threads that read in Python would hardly let this one replace the file
    try:
        for thread in threads:
            thread.start()
        for i in range(100):
            (tmp_path / "new").write_bytes(contents[i % 2])
            os.replace(tmp_path / "new", shard.path)
        done.set()
        for thread in threads:
            thread.join(200)
    finally:
        sys.setswitchinterval(interval)
    assert not failures


NUMBERS = st.one_of(st.integers(-20, 700), st.integers(-(2**63), 2**63 - 1), st.sampled_from(HUGE))


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, int, int, bool]]]:
    """A file, intact or with a flipped byte, and requests that mostly meet its records nearly."""
    records = draw(st.lists(st.binary(max_size=60), max_size=6))
    content = bytearray(b"".join(map(framed, records)))
    offsets = [sum(len(record) + 16 for record in records[:i]) for i in range(len(records))]
    if content and draw(st.booleans()):
        content[draw(st.integers(0, len(content) - 1))] ^= draw(st.integers(1, 255))
    if content and draw(st.booleans()):
        del content[draw(st.integers(0, len(content) - 1)) :]
    asked = []
    for _ in range(draw(st.integers(0, 8))):
        offset, length = draw(NUMBERS), draw(NUMBERS)
        if records and draw(st.booleans()):
            i = draw(st.integers(0, len(records) - 1))
            offset, length = offsets[i], len(records[i]) + draw(st.sampled_from((0, 0, 0, 1, -1)))
        inside = draw(st.booleans()) and 0 <= length < 1000
        start = draw(st.integers(0, length)) if inside else draw(NUMBERS)
        size = draw(st.integers(0, length - start)) if inside else draw(NUMBERS)
        asked.append((offset, length, start, size, draw(st.booleans())))
    return bytes(content), asked


def expected(content: bytes, offset: int, length: int, start: int, size: int, check: bool) -> bytes | None:
    """The part, in Python's integers and nothing of what is tested; None where the record is not ok."""
    if offset < 0 or length < 0 or start < 0 or size < 0 or start + size > length:
        return None
    if offset + length + 16 > len(content):
        return None
    payload = content[offset + 12 : offset + 12 + length]
    if check and content[offset : offset + length + 16] != framed(payload):
        return None
    return payload[start : start + size]


@settings(max_examples=200, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_requests=requests())
def test_ok_exactly_when_valid(
    reader: Reader, tmp_path: Path, given_requests: tuple[bytes, list[tuple[int, int, int, int, bool]]]
) -> None:
    content, asked = given_requests
    path = tmp_path / "fuzz"
    (tmp_path / "new").write_bytes(content)
    os.replace(tmp_path / "new", path)
    names = ("offset", "length", "start", "size", "check")
    vectors = {name: [request[i] for request in asked] for i, name in enumerate(names)}
    parts, ok = reader.records([path], file=[0] * len(asked), **vectors)
    should = [expected(content, *request) for request in asked]
    assert ok == [part is not None for part in should]
    assert parts == [part or b"" for part in should]
    length = next((length for _, length, *_ in asked if 0 <= length < 1000), 5)
    rows, ok = reader.rows([path], length, file=[0] * len(asked), offset=vectors["offset"], check=vectors["check"])
    should = [expected(content, offset, length, 0, length, check) for offset, *_, check in asked]
    assert ok == [part is not None for part in should]
    assert rows == [bytes(length) if part is None else part for part in should]


def test_many_files(reader: Reader, tmp_path: Path) -> None:
    shards = [Shard(tmp_path / f"{i:03}", payloads([i % 50], seed=i)) for i in range(300)]
    order = np.random.default_rng(3).permutation(300).tolist()
    asked = {"file": order, "offset": [0] * 300, "check": [True] * 300}
    lengths = [shards[i].lengths[0] for i in order]
    parts, ok = reader.records([shard.path for shard in shards], **asked, length=lengths, start=[0] * 300, size=lengths)
    assert all(ok)
    assert parts == [shards[i].records[0] for i in order]


def test_of_a_file_in_another_state_no_record_is_ok(ops: Records, tmp_path: Path) -> None:
    """The ops read files in the state in which they were looked at, and say of others that their records are not ok."""

    def states(*paths: Path) -> list[int]:
        found = [os.stat(path) for path in paths]
        return [number for at in found for number in (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns)]

    shards = [Shard(tmp_path / f"{place}.tfrecord", payloads((3, 5), seed=place)) for place in range(2)]
    paths = [str(shard.path) for shard in shards]
    vectors = tensors(whole(shards[0])) | {"file": np.array([0, 1], np.int32)}
    known = states(*(shard.path for shard in shards))
    parts, ok = ops.read_records(paths, **vectors, state=known)
    assert ok.numpy().tolist() == [True, True]
    assert parts.numpy().tolist() == [shards[0].records[0], shards[1].records[1]]
    content = shards[1].path.read_bytes()
    shards[1].path.unlink()
    for again in (False, True):  # it is gone; then it is there again, with another time
        if again:
            shards[1].path.write_bytes(content)
            os.utime(shards[1].path, ns=(0, -5))
        for read in (
            lambda: ops.read_records(paths, **vectors, state=known)[1],
            lambda: ops.read_rows(paths, [0, 1], [0, 19], [True] * 2, 3, state=known)[1],
            lambda: ops.parse_records(paths, [0, 1], [0, 19], [3, 5], [True] * 2, [("x", "float", 1)], state=known)[1],
        ):
            assert not read().numpy()[1]
        assert ops.read_records(paths, **vectors, state=known)[1].numpy().tolist() == [True, False]
    now = states(*(shard.path for shard in shards))
    now = [number & 2**64 - 1 for number in now]
    state = np.array(now, np.uint64).view(np.int64)
    assert ops.read_records(paths, **vectors, state=state)[1].numpy().tolist() == [True, True]
    with pytest.raises(Exception, match=r"3 values.* 2 files"):
        ops.read_records(paths, **vectors, state=[1, 2, 3])
