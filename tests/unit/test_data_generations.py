"""A directory that becomes another one while it is read, and files that change places: never a wrong label."""

import itertools
import json
import os
import pickle
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.corruption import LAYOUTS, Faulty, KilledError, snapshot
from tests.refusals import refused
from tfdist import data
from tfdist.data.check.repairing import repair_storage
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.fetch import PAYLOAD, Fetcher, source_of
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.writing import dataset_writer
from tfdist.errors import ConfigError, CorruptDataError, DataChangedError
from tfdist.storage.directory import storage

COUNT = 12
OLD, NEW = 0, 100  # what is added to the numbers of a generation
SCHEMAS = {"generic": data.Schema({"image": data.Feature("int64", (None,)), "label": data.Feature("int64")})}


def arrays(layout: str, generation: int, *, alike: bool = False) -> Any:
    """Examples whose pictures show their labels, in bytes as many in each generation.

    With ``alike``, all but those in the middle of a shard of four are those of generation 0.
    """
    return of_numbers(layout, [n + (generation if not alike or n % 4 in (1, 2) else 0) for n in range(COUNT)])


def of_numbers(layout: str, numbers: list[int]) -> Any:
    labels = np.array(numbers)
    if layout == "fixed":
        return {"image": np.repeat(labels[:, None], 3, 1).astype("float32"), "label": labels}
    if layout == "extent":
        return {"image": [b"%03d" % n * 9 for n in numbers], "label": labels}
    return [{"image": np.full(3, n), "label": np.int64(n)} for n in numbers]


def write(place: Any, layout: str, generation: int, *, alike: bool = False, **options: Any) -> Manifest:
    how = {"schema": SCHEMAS.get(layout), "num_shards": 3, "processes": 1, **options}
    return data.write(arrays(layout, generation, alike=alike), place, **how)


def shown(layout: str, image: Any) -> int:
    """The label that a picture shows."""
    return int(bytes(image)[:3]) if layout == "extent" else int(np.asarray(image).reshape(-1)[0])


def by_number(examples: Examples, layout: str) -> list[tuple[int, int]]:
    return [(shown(layout, found["image"]), int(found["label"])) for found in examples]


def in_batches(examples: Examples, layout: str) -> list[tuple[int, int]]:
    """Return the examples as `read` finds them in NumPy, in two batches."""
    read, found = Fetcher(examples, source_of(examples), verify="first", skip=True), []
    for ids in (np.arange(0, COUNT, 2), np.arange(1, COUNT, 2)):
        columns, weight = read(ids)
        assert weight.all()
        if PAYLOAD in columns:
            return by_number(examples, layout)  # whole records: the label lies beside its picture
        found += [(shown(layout, i), int(n)) for i, n in zip(columns["image"], columns["label"], strict=True)]
    return sorted(found)


WAYS: tuple[Callable[[Examples, str], list[tuple[int, int]]], ...] = (by_number, in_batches)


def of(generation: int) -> list[tuple[int, int]]:
    return [(n + generation, n + generation) for n in range(COUNT)]


@pytest.fixture(params=["folder", "store"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "größe") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/größe"
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


class Watched:
    """A storage that calls somebody before and after every change."""

    def __init__(self, inner: Any, look: Callable[[], None]) -> None:
        self._inner, self._look = inner, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        with self._inner.create(name) as file:
            yield file
        self._look()

    def remove(self, name: str) -> None:
        self._inner.remove(name)
        self._look()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whoever_reads_while_it_is_overwritten_has_one_generation_or_an_error(
    layout: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory, layout, OLD)
    before = [(data.open(directory), way) for way in WAYS]  # some of their files are not mapped yet
    half = data.open(directory)
    assert [int(found["label"]) for found in half.each(range(5))] == list(range(5))
    seen: list[str] = []

    def look() -> None:
        for examples, way in [*before, (half, by_number)]:
            try:
                assert way(examples, layout) == of(OLD)
                seen.append("old")
            except DataChangedError:
                seen.append("changed")
        fresh = data.open(directory)
        assert by_number(fresh, layout) == of(OLD if fresh.manifest.revision == 1 else NEW)

    monkeypatch.setattr(dataset_writer, "storage", lambda where, **options: Watched(storage(where, **options), look))
    assert write(directory, layout, NEW, exists="overwrite").revision == 2
    for examples, way in [*before, (half, by_number)]:
        with refused(DataChangedError, path=directory, mentions=["revision is 2", "opened revision 1"]):
            way(examples, layout)
    assert [key for key, _ in itertools.groupby(seen)] == ["old", "changed"], "and never back"
    assert by_number(data.open(directory), layout) == in_batches(data.open(directory), layout) == of(NEW)
    names = storage(directory).names()
    shards = [name for name in names if name.endswith(".tfrecord")]
    assert shards == [f"data-{n:05}.revision-2.tfrecord" for n in range(3)]
    assert "writing.jsonl" not in names


@pytest.mark.parametrize("how", ["removed", "copied"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_directory_that_was_removed_and_written_again_is_another(layout: str, how: str, tmp_path: Path) -> None:
    """The names are the same, and so are sizes, and the examples at the ends of each shard."""
    folder, other = tmp_path / "train", tmp_path / "other"
    write(folder, layout, OLD, alike=True)
    readers = [(data.open(folder), way) for way in WAYS]
    for examples, _ in readers:
        assert int(examples[0]["label"]) == 0  # the first file is bound
    if how == "removed":
        shutil.rmtree(folder)
        write(folder, layout, NEW, alike=True)
    else:
        write(other, layout, NEW, alike=True)
        for path in sorted(other.iterdir(), reverse=True):  # the manifest first
            shutil.copy(path, folder)
    for examples, way in readers:
        with pytest.raises(DataChangedError):
            way(examples, layout)
    shutil.rmtree(folder)
    for examples, way in readers:
        with refused(DataChangedError, mentions=["no manifest.json"]):
            way(examples, layout)


def test_a_file_that_was_touched_or_copied_again_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, "extent", OLD)
    examples = data.open(tmp_path)
    assert in_batches(examples, "extent") == of(OLD)
    for path in tmp_path.glob("data-*"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    os.utime(tmp_path / "manifest.json")
    assert in_batches(examples, "extent") == by_number(examples, "extent") == of(OLD)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shards_that_were_swapped_are_found_and_named(layout: str, alike: bool, directory: str) -> None:
    numbers = [7, 0, 8, 9, 7, 1, 8, 9, 7, 2, 8, 9]  # the shards differ in their middle alone
    data.write(
        of_numbers(layout, numbers if alike else list(range(NEW, NEW + COUNT))),
        directory,
        schema=SCHEMAS.get(layout),
        num_shards=3,
    )
    place = storage(directory)
    contents = {name: place.read(name) for name in ("data-00000.tfrecord", "data-00002.tfrecord")}
    assert len({len(content) for content in contents.values()}) == 1
    assert len(set(contents.values())) == 2
    for name, content in zip(contents, reversed(contents.values()), strict=True):
        with place.create(name) as file:
            file.write(content)
    for way in WAYS:
        with refused(CorruptDataError, mentions=list(contents)) as caught:
            way(data.open(directory), layout)
        assert caught.value.path in contents
    assert not data.verify(directory).is_sound
    data.repair(directory)
    assert all(a == b for a, b in by_number(data.open(directory), layout))


def test_a_shard_of_another_directory_is_found(tmp_path: Path) -> None:
    for name, generation in (("a", OLD), ("b", NEW)):
        write(tmp_path / name, "extent", generation)
    shutil.copy(tmp_path / "b" / "data-00001.tfrecord", tmp_path / "a")
    with refused(CorruptDataError, path="data-00001.tfrecord", mentions=["sound examples"]):
        by_number(data.open(tmp_path / "a"), "extent")


@pytest.mark.parametrize("layout", ["fixed", "extent"])
def test_an_overwriting_that_is_ended_at_any_step(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    write(source, layout, OLD, num_shards=2)

    def overwrite(folder: Path, step: int | None) -> Faulty:
        faulty = Faulty(storage(folder), step)
        with monkeypatch.context() as patch:
            patch.setattr(dataset_writer, "storage", lambda *_, **__: faulty)
            write(folder, layout, NEW, exists="overwrite", num_shards=2)
        return faulty

    whole = shutil.copytree(source, tmp_path / "whole")
    steps = overwrite(whole, None).steps
    assert steps > 10
    for step in range(steps):
        folder = shutil.copytree(source, tmp_path / f"step {step}")
        with pytest.raises(KilledError):
            overwrite(folder, step)
        found = data.open(folder)
        assert by_number(found, layout) == of(OLD if found.manifest.revision == 1 else NEW)
        assert data.verify(folder).is_sound
        kept = write(folder, layout, NEW, exists="keep", num_shards=2)
        assert kept.digest == found.manifest.digest, "examples that are there are kept"
        if "writing.jsonl" in snapshot(folder):
            with refused(ConfigError, name="exists", path=folder):
                write(folder, layout, 200, num_shards=2)
            # the same job goes on; of a list nobody knows that it is the same before a shard of it is finished
            goes_on = layout == "fixed" or len((folder / "writing.jsonl").read_text().splitlines()) > 1
            write(folder, layout, NEW, num_shards=2, exists="raise" if goes_on else "overwrite")
            assert snapshot(folder) == snapshot(whole)
        else:
            repair_storage(storage(folder))  # removes what the killed one left
        last = data.open(folder)
        assert data.verify(folder).is_sound
        assert {name for name in snapshot(folder) if name.startswith("data-")} == set(last.manifest.files)


def test_a_lost_manifest_is_made_of_one_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, at_manifest in (("ended before", True), ("ended behind", False)):
        folder = tmp_path / name
        write(folder, "extent", OLD)
        old = snapshot(folder)
        faulty = Faulty(storage(folder), None)

        def remove(name: str, inner: Any = faulty) -> None:
            if name.endswith(".tfrecord"):
                raise KilledError
            inner._inner.remove(name)

        monkeypatch.setattr(faulty, "remove", remove, raising=False)
        with monkeypatch.context() as patch:
            patch.setattr(dataset_writer, "storage", lambda *_, inner=faulty, **__: inner)
            with pytest.raises(KilledError):
                write(folder, "extent", NEW, exists="overwrite")
        if at_manifest:  # as if it had been ended just before its manifest was there
            (folder / "writing.jsonl").write_text("{}\n")
        for file, content in old.items():  # both are there
            if file.startswith("data-"):
                (folder / file).write_bytes(content)
        (folder / "manifest.json").unlink()
        data.repair(folder, rebuild_manifest=True)
        assert by_number(data.open(folder), "extent") == of(OLD if at_manifest else NEW)
        again = write(folder, "extent", 200, exists="overwrite")
        assert again.revision > 2
        assert by_number(data.open(folder), "extent") == of(200)


def test_what_an_earlier_release_wrote_is_read(tmp_path: Path) -> None:
    """Its manifest has another version, without what tells shards from each other; the digest is one that it wrote."""
    data.write({"text": [b"a", b"bc", b"d"], "label": np.arange(3)}, tmp_path, num_shards=2)
    path = tmp_path / "manifest.json"
    found = json.loads(path.read_text())
    for shard in found["shards"]:
        del shard["ends"]
    path.write_text(json.dumps({**found, "version": 1, "digest": "3dc1f92da9091b992a923bbae365b911"}))
    assert [example["text"] for example in data.open(tmp_path)] == [b"a", b"bc", b"d"]
    assert not data.repair(tmp_path).has_changed
    examples = data.open(tmp_path)
    data.write({"text": [b"e", b"fg", b"h"], "label": np.arange(3)}, tmp_path, num_shards=2, exists="overwrite")
    with pytest.raises(DataChangedError):
        examples[0]


def test_a_stream_does_not_take_over_an_overwriting_of_which_nothing_is_finished(tmp_path: Path) -> None:
    def stopping() -> Iterator[dict[str, Any]]:
        yield {"x": 1}
        raise KilledError

    data.write({"x": np.arange(3)}, tmp_path)
    with pytest.raises(KilledError):
        data.write(stopping(), tmp_path, exists="overwrite", shard_bytes=1 << 20)
    with refused(ConfigError, name="exists", path=tmp_path):
        data.write(({"x": n} for n in range(9)), tmp_path, shard_bytes=1 << 20)
    assert len(data.open(tmp_path)) == 3
    assert data.write(({"x": n} for n in range(9)), tmp_path, exists="overwrite", shard_bytes=1 << 20).examples == 9


def test_files_that_are_indexed_anew_leave_a_reader_what_it_opened(tmp_path: Path) -> None:
    write(tmp_path, "extent", OLD)
    before = {path.name for path in tmp_path.glob("*.index")}
    examples = data.open(tmp_path)
    assert data.index(tmp_path, exists="overwrite").digest == examples.manifest.digest, "nothing is another"
    assert by_number(examples, "extent") == of(OLD)
    late = data.open(tmp_path)  # has not read its indices
    narrow = data.Schema({"image": data.Feature("string"), "label": data.Feature("uint8")})
    assert data.index(tmp_path, schema=narrow, exists="overwrite").revision == 2
    for reader in (examples, late):
        with pytest.raises(DataChangedError):
            by_number(reader, "extent")
    assert by_number(data.open(tmp_path), "extent") == of(OLD)
    after = {path.name for path in tmp_path.glob("*.index")}
    assert len(after) == 3
    assert not after & before
    assert data.verify(tmp_path).is_sound


def test_verifying_what_is_overwritten_meanwhile_does_not_call_it_corrupt(tmp_path: Path) -> None:
    write(tmp_path, "extent", OLD)
    examples = data.open(tmp_path)
    write(tmp_path, "extent", NEW, exists="overwrite")
    with pytest.raises(DataChangedError):
        examples.verify()


def test_an_open_directory_goes_to_another_process(tmp_path: Path) -> None:
    write(tmp_path, "extent", OLD)
    examples = data.open(tmp_path)
    assert by_number(examples, "extent") == of(OLD)
    there = pickle.loads(pickle.dumps(examples))  # noqa: S301
    assert by_number(there, "extent") == of(OLD)
    write(tmp_path, "extent", NEW, exists="overwrite")
    with pytest.raises(DataChangedError):
        by_number(there, "extent")


def test_one_example_and_none_at_the_ends(tmp_path: Path) -> None:
    data.write({"text": [b""], "label": np.arange(1)}, tmp_path)
    assert [(found["text"], int(found["label"])) for found in data.open(tmp_path)] == [(b"", 0)]
    found = json.loads((tmp_path / "manifest.json").read_text())
    for ends in ([1], "12", [1, -1], [1, 2**32], [True, 1]):
        found["shards"][0]["ends"] = ends
        with refused(CorruptDataError, name="ends of shard 0", path="manifest.json"):
            Manifest.from_bytes(json.dumps(found).encode())
