"""Every byte of a directory is looked at: each thing that is wrong is found, with its place, and nothing else."""

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tfdist
from tests.corruption import EXAMPLES, LAYOUTS, PARTS, examples_of, flip, parts, snapshot, write
from tests.refusals import refused
from tfdist.data.check import verifying
from tfdist.data.format import record_framing
from tfdist.data.format.record_framing import Content, walk
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import storage


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sound_directory_is_sound(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout)
    before, seen = snapshot(tmp_path), []
    report = tfdist.data.verify(tmp_path, progress=lambda *done: seen.append(done))
    assert report.is_sound
    assert report.require_sound() is report
    assert (report.sound, report.examples, report.shards) == (EXAMPLES, EXAMPLES, 2)
    assert seen[-1] == (report.bytes, report.bytes)
    assert json.loads(json.dumps(report.to_json()))["is_sound"] is True
    assert "10 examples in 2 shards" in str(report)
    assert tfdist.data.open(tmp_path).verify() == report
    assert snapshot(tmp_path) == before


@pytest.mark.timeout(120)
def test_after_an_error_nothing_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    ended_early: list[int] = []

    def examine(place: Any, found: Any, number: int, *, seen: Any, **_: Any) -> None:
        both.wait()
        if number == 0:
            raise OSError("no disk")
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:  # a shard that takes long
                seen(1)
        except BaseException:
            ended_early.append(number)
            raise

    monkeypatch.setattr(verifying, "examine", examine)
    remote: Any = SimpleNamespace(local=None)
    manifest: Any = SimpleNamespace(shards=[SimpleNamespace(examples=1)] * 2, total_bytes=2)
    with pytest.raises(OSError, match="no disk"):
        verifying.examine_all(remote, manifest, decode=None, progress=None)
    assert ended_early == [1]


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flipped_bit_is_found_in_every_part_of_a_record(
    tmp_path: Path, layout: str, part: str, contents: bool
) -> None:
    write(tmp_path, layout)
    examples = tfdist.data.open(tmp_path)
    name, offset = parts(examples, 7)[part]
    begin = int(examples.locate(np.array([7]))[1][0])
    flip(tmp_path / name, offset)
    report = tfdist.data.verify(tmp_path, contents=contents)
    (found,) = report.places
    assert (found.file, found.offset, found.example, found.examples) == (name, begin, 7, 1)
    assert report.sound == EXAMPLES - 1
    facts = [f"{name}, byte {begin}, example 7", "tfdist data repair"]
    with refused(CorruptDataError, path=tmp_path, mentions=facts):
        report.require_sound()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_in_one_shard_are_all_found(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout, num_shards=1)
    examples = tfdist.data.open(tmp_path)
    for number, part in ((0, "length"), (1, "middle"), (2, "checksum of length"), (3, "length"), (9, "length")):
        flip(tmp_path / "data-00000.tfrecord", parts(examples, number)[part][1])
    report = tfdist.data.verify(tmp_path)
    assert [place.example for place in report.places] == [0, 1, 2, 3, 9]
    assert report.sound == 5


@pytest.mark.parametrize("layout", ["extent", "generic"])
def test_without_an_index_records_are_found_by_their_checksums(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout, num_shards=1)
    examples = tfdist.data.open(tmp_path)
    for number, part in ((2, "length"), (6, "middle")):
        flip(tmp_path / "data-00000.tfrecord", parts(examples, number)[part][1])
    (tmp_path / "data-00000.index").unlink()
    missing, first, second = tfdist.data.verify(tmp_path).places
    assert (missing.file, missing.offset) == ("data-00000.index", None)
    assert "no such file" in missing.problem
    assert first.example == 2
    assert second.example is None  # how many were lost before it, nobody knows
    assert [found.offset for found in (first, second)] == [int(examples.offsets[2]), int(examples.offsets[6])]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shard_that_was_cut(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout, num_shards=1)
    path = tmp_path / "data-00000.tfrecord"
    offsets = tfdist.data.open(tmp_path).locate(np.arange(EXAMPLES))[1]
    os.truncate(path, int(offsets[8]) + 5)
    report = tfdist.data.verify(tmp_path)
    assert report.sound == 8
    assert sum(place.examples for place in report.places) == 2
    assert "the manifest says" in report.places[0].problem
    os.truncate(path, int(offsets[8]))  # between two records
    report = tfdist.data.verify(tmp_path)
    assert report.sound == 8
    assert sum(place.examples for place in report.places) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_that_were_put_in_or_taken_out(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout, num_shards=1)
    path = tmp_path / "data-00000.tfrecord"
    data, examples = path.read_bytes(), tfdist.data.open(tmp_path)
    begin = int(examples.locate(np.array([4]))[1][0])
    path.write_bytes(data[: begin + 20] + data[begin + 23 :])
    found = list(walk(Content(storage(tmp_path), path.name)))
    assert [record.payload is not None for record in found] == [True] * 4 + [False] + [True] * 5
    assert not tfdist.data.verify(tmp_path).is_sound
    path.write_bytes(data[:begin] + b"dirt" + data[begin:])
    found = list(walk(Content(storage(tmp_path), path.name)))
    assert [record.payload is not None for record in found] == [True] * 4 + [False] + [True] * 6
    assert sum(record.size for record in found) == path.stat().st_size


def test_a_missing_shard(tmp_path: Path) -> None:
    write(tmp_path, "fixed")
    (tmp_path / "data-00001.tfrecord").unlink()
    (found,) = tfdist.data.verify(tmp_path).places
    assert (found.file, found.example, found.examples) == ("data-00001.tfrecord", 5, 5)


@pytest.mark.parametrize("offset", [3, 200, -1])
def test_an_index_that_is_corrupt(tmp_path: Path, offset: int) -> None:
    write(tmp_path, "extent")
    index = tmp_path / "data-00001.index"
    flip(index, offset % index.stat().st_size)
    report = tfdist.data.verify(tmp_path)
    assert [place.file for place in report.places] == ["data-00001.index"]
    assert report.sound == EXAMPLES


def test_an_index_that_lies(tmp_path: Path) -> None:
    write(tmp_path, "extent", num_shards=1)
    _replace_index(tmp_path, "value:label", 3, 77)
    (found,) = tfdist.data.verify(tmp_path).places
    assert (found.file, found.example) == ("data-00000.index", 3)
    assert tfdist.data.verify(tmp_path, contents=False).is_sound


def test_an_index_of_other_records(tmp_path: Path) -> None:
    write(tmp_path, "generic", num_shards=1)
    _replace_index(tmp_path, "offset", 4, 30)
    assert {place.example for place in tfdist.data.verify(tmp_path).places} == {4, None}


def test_records_that_are_no_examples_of_the_schema(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout, num_shards=1)
        path = folder / "data-00000.tfrecord"
        offsets = [int(offset) for offset in tfdist.data.open(folder).locate(np.arange(EXAMPLES))[1]]
        length = offsets[6] - offsets[5] - record_framing.OVERHEAD_BYTES
        data = path.read_bytes()
        path.write_bytes(data[: offsets[5]] + record_framing.frame(bytes(length)) + data[offsets[6] :])
        report = tfdist.data.verify(folder)
        assert [place.example for place in report.places] == [5]
        assert tfdist.data.verify(folder, contents=False).places[0].example is None  # the file's checksum


def test_integers_of_the_fixed_layout_have_their_bits(tmp_path: Path) -> None:
    write(tmp_path, "fixed", num_shards=1)
    examples = tfdist.data.open(tmp_path)
    assert examples.template is not None
    row = examples.template.encode({"x": np.zeros((1, 3), np.float32), "label": np.array([5])}, 1)
    assert examples.template.fits(row).tolist() == [True]
    row[0, examples.template.slots["label"][0]] &= 0x7F  # the number ends here, and what follows is something else
    assert examples.template.fits(row).tolist() == [False]


def test_a_manifest_that_is_corrupt_is_a_place(tmp_path: Path) -> None:
    write(tmp_path, "fixed")
    flip(tmp_path / "manifest.json", 60)
    report = tfdist.data.verify(tmp_path)
    assert [place.file for place in report.places] == ["manifest.json"]
    assert "--rebuild-manifest" in report.cure
    with refused(ConfigError, path=tmp_path / "nothing"):
        tfdist.data.verify(tmp_path / "nothing")


def test_memory_stays_bounded_whatever_the_shard_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "extent", count=200, num_shards=1)
    asked: list[int] = []
    place = storage(tmp_path)
    read = place.read

    def noted(name: str, start: int = 0, length: int | None = None) -> bytes:
        asked.append(-1 if length is None else length)
        return read(name, start, length)

    monkeypatch.setattr(place, "read", noted)
    monkeypatch.setattr(record_framing, "WINDOW_BYTES", 1000)
    content = Content(place, "data-00000.tfrecord")
    assert sum(found.payload is not None for found in walk(content)) == 200
    assert content.crc() == tfdist.data.open(tmp_path).manifest.shards[0].crc32c
    assert 0 < min(asked) <= max(asked) <= 1000


@pytest.mark.parametrize("window", [64, 100, 1 << 20])
def test_what_is_found_does_not_depend_on_the_window(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    payloads = [generator.bytes(int(size)) for size in generator.integers(0, 200, 60)]
    data = bytearray(b"".join(map(record_framing.frame, payloads)))
    for at in generator.integers(0, len(data), 12):
        data[at] ^= 0x10
    with storage(tmp_path).create("a") as file:
        file.write(data)
    expected = [(found.offset, found.payload) for found in walk(Content(storage(tmp_path), "a"))]
    monkeypatch.setattr(record_framing, "WINDOW_BYTES", window)
    found = [(found.offset, found.payload) for found in walk(Content(storage(tmp_path), "a"))]
    assert found == expected
    assert 40 < sum(payload in payloads for _, payload in found if payload is not None) < 60


def test_headers_are_what_the_scalar_checksum_says() -> None:
    generator = np.random.default_rng(0)
    lengths = [0, 1, 5, 300, 70000, 2**31, 2**47]
    data = b"".join(generator.bytes(3) + record_framing.header(length) for length in lengths)
    found = record_framing.headers(data, room=2**48).tolist()
    assert [at for at in found if (at - 3) % 15 == 0] == [3 + 15 * i for i in range(len(lengths))]
    assert record_framing.headers(data, room=100).tolist() == found[:3]
    assert record_framing.headers(bytes(10**6), room=10**6).tolist() == []
    assert record_framing.headers(b"\xff" * 1000, room=1000).tolist() == []


def test_a_file_that_was_made_to_cost_time(tmp_path: Path) -> None:
    """Headers that are sound, each before a long payload that is not: looking at each of these would take hours."""
    count = 100_000
    size = 12 * count
    frames = b"".join(record_framing.header(size // 2 - 12 - i % 7) for i in range(count // 2))
    with storage(tmp_path).create("a") as file:
        file.write(frames + bytes(size // 2))
    looked = 0

    class Counted(Content):
        def crc_of(self, offset: int, size: int) -> int:
            nonlocal looked
            looked += size
            return super().crc_of(offset, size)

    found = list(walk(Counted(storage(tmp_path), "a")))
    assert looked < 10 * size
    assert record_framing.GAVE_UP in found[-1].problem
    assert sum(part.size for part in found) == size


def test_what_examples_are_survives(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        write(tmp_path / layout, layout)
        found: Any = list(tfdist.data.open(tmp_path / layout))
        for given, read in zip(examples_of(layout), found, strict=True):
            assert given.keys() == read.keys()
            assert all(np.array_equal(given[name], read[name]) for name in given)


def _replace_index(folder: Path, key: str, row: int, value: int) -> None:
    """Put something else into an index, and into the manifest what makes it look right."""
    import dataclasses

    from tfdist.data.format.shard_index import Index, stored_index
    from tfdist.data.writing.shard import store_index

    examples = tfdist.data.open(folder)
    (shard,) = examples.manifest.shards
    stored = stored_index(examples.storage, examples.manifest, shard)
    arrays = {name: np.array(values) for name, values in stored.columns.items()}
    offsets = np.array(stored.offsets)
    (offsets if key == "offset" else arrays[key])[row] = value if key != "offset" else offsets[row] + value
    about = store_index(examples.storage, shard.file, Index(offsets, arrays))
    manifest = dataclasses.replace(examples.manifest, shards=(dataclasses.replace(shard, index=about),))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
