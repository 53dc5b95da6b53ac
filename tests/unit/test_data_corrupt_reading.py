"""A flipped bit costs one example, whoever reads: by number, in batches, from a folder or a store."""

import itertools
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import tfdist
from tests.corruption import EXAMPLES, LAYOUTS, PARTS, examples_of, flip, flip_stored, parts, write
from tests.refusals import absent, refused
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.fetch import PAYLOAD, Fetcher, source_of, stand_ins
from tfdist.errors import CorruptDataError

BAD = 7
IDS = np.arange(EXAMPLES)


@pytest.fixture(params=["folder", "store"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}/data"
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def damaged(directory: str, layout: str, part: str) -> tuple[Examples, dict[str, Any]]:
    """A directory whose example 7 has a flipped bit in this part; and how errors must say where it is."""
    write(directory, layout)
    examples = tfdist.data.open(directory)
    name, offset = parts(examples, BAD)[part]
    begin = int(examples.locate(np.array([BAD]))[1][0])
    flip_stored(examples.storage, name, offset)
    return tfdist.data.open(directory), {"path": name, "mentions": [f"example {BAD}", f"{name}, byte {begin}."]}


def fetcher(examples: Examples, *, skip: bool = False, verify: str = "first") -> Fetcher:
    return Fetcher(examples, source_of(examples), verify=verify, skip=skip)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_example_is_lost_and_named(directory: str, layout: str, part: str) -> None:
    examples, where = damaged(directory, layout, part)
    with refused(CorruptDataError, **where):
        examples[BAD]
    with refused(CorruptDataError, **where):
        fetcher(examples)(IDS)
    good = np.delete(IDS, BAD)
    assert [int(found["label"]) for found in examples.each(good)] == good.tolist()
    assert fetcher(examples)(good)[1].tolist() == [1.0] * len(good)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_skipping_keeps_the_number_of_examples(
    directory: str, layout: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    examples, where = damaged(directory, layout, part)
    read, expected = fetcher(examples, skip=True), examples_of(layout)
    for _ in range(3):
        columns, weight = read(IDS)
        assert weight.tolist() == [float(number != BAD) for number in IDS]
        assert {len(column) for column in columns.values()} == {EXAMPLES}
        if PAYLOAD not in columns:
            for number in np.delete(IDS, BAD):
                assert all(np.array_equal(columns[name][number], expected[number][name]) for name in columns)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # said once
    assert not absent(caplog.text, *where["mentions"])


def test_a_batch_of_nothing_but_corrupt_examples(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout, count=40, num_shards=2)
        path = folder / "data-00000.tfrecord"
        path.write_bytes(bytes(path.stat().st_size))
        read = fetcher(tfdist.data.open(folder), skip=True)
        for start in (0, 5, 10):
            columns, weight = read(np.arange(start, start + 5))
            assert weight.tolist() == [0.0] * 5
            assert {len(column) for column in columns.values()} == {5}
        (folder / "data-00001.tfrecord").write_bytes(bytes((folder / "data-00001.tfrecord").stat().st_size))
        read = fetcher(tfdist.data.open(folder), skip=True)
        with refused(CorruptDataError, path=folder):
            read(np.arange(3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checksums_are_looked_at_first_always_or_never(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout)
    examples = tfdist.data.open(tmp_path)
    readers = {verify: fetcher(examples, verify=verify) for verify in ("first", "always", "never")}
    for read in readers.values():
        read(IDS)
    name, offset = parts(examples, BAD)["checksum"]
    flip(tmp_path / name, offset)
    readers["never"](IDS)
    readers["first"](IDS)
    with pytest.raises(CorruptDataError):
        readers["always"](IDS)
    with pytest.raises(CorruptDataError):
        fetcher(examples)(IDS)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("layout", ["extent", "generic"])
def test_without_its_index_a_shard_is_indexed_in_memory(
    tmp_path: Path, layout: str, is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for part in PARTS:
        folder = tmp_path / part
        examples, where = damaged(str(folder), layout, part)
        index = folder / "data-00001.index"
        if is_there:
            flip(index, 60)
        else:
            index.unlink()
        examples = tfdist.data.open(folder)
        good = np.delete(IDS, BAD)
        assert [int(found["label"]) for found in examples.each(good)] == good.tolist()
        with refused(CorruptDataError, **where):
            examples[BAD]
        assert "is indexed anew" in caplog.text


def test_a_shard_that_was_cut_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    write(tmp_path, "generic")
    path = tmp_path / "data-00001.tfrecord"
    path.write_bytes(path.read_bytes()[:-5])
    found = path.stat().st_size
    facts = [f"{found} bytes", str(found + 5), "tfdist data repair"]
    with refused(CorruptDataError, path=path.name, received=found, mentions=facts):
        tfdist.data.open(tmp_path)


def test_what_was_read_is_what_was_written_or_nothing(tmp_path: Path) -> None:
    """Every byte of a shard, one after the other: the example that has it is lost, and no other."""
    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout, count=2, num_shards=1)
        path, expected = folder / "data-00000.tfrecord", examples_of(layout, 2)
        data: Any = bytearray(path.read_bytes())
        offsets = tfdist.data.open(folder).locate(np.arange(2))[1]
        for at in range(len(data)):
            data[at] ^= 1 << (at % 8)
            path.write_bytes(data)
            data[at] ^= 1 << (at % 8)
            bad = int(np.searchsorted(offsets, at, side="right")) - 1
            good = [1 - bad]
            found = list(tfdist.data.open(folder).each(good))
            assert all(np.array_equal(a[n], expected[i][n]) for a, i in zip(found, good, strict=True) for n in a)
            assert fetcher(tfdist.data.open(folder), skip=True)(np.arange(2))[1].tolist() == [
                float(number != bad) for number in range(2)
            ]


@pytest.mark.parametrize(("last", "expected"), [(None, [5, 6, 0]), (2, [2, 5, 6])])
def test_a_stand_in_is_found_without_a_list_of_all_examples(last: int | None, expected: list[int]) -> None:
    assert list(itertools.islice(stand_ins(4, 7, last), 3)) == expected
    assert next(stand_ins(4, 10**15, last)) == expected[0]
