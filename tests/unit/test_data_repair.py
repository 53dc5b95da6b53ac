"""A repair keeps all that is whole, touches nothing that is sound, and can be ended at any moment."""

import json
import os
import shutil
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest

import tfdist
from tests.corruption import (
    EXAMPLES,
    LAYOUTS,
    PARTS,
    Faulty,
    KilledError,
    flip,
    flip_stored,
    labels_of,
    parts,
    snapshot,
    write,
)
from tests.refusals import refused
from tfdist.data.check.repairing import repair_storage
from tfdist.data.format.revisions import (
    newest,
    next_revision,
    of_one_writing,
    original,
    revised,
    shard_name,
    superseded,
)
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import storage

ALL = list(range(EXAMPLES))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_do_changes_nothing(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout)
    before = snapshot(tmp_path)
    done = tfdist.data.repair(tmp_path)
    assert not done.has_changed
    assert (done.kept, done.revision, done.lost) == (EXAMPLES, 1, ())
    assert snapshot(tmp_path) == before
    assert "nothing was changed" in str(done)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_corrupt_record_costs_one_example(tmp_path: Path, layout: str, part: str) -> None:
    write(tmp_path, layout)
    before = snapshot(tmp_path)
    name, offset = parts(tfdist.data.open(tmp_path), 7)[part]
    flip(tmp_path / name, offset)
    done = tfdist.data.repair(tmp_path)
    assert (done.kept, done.lost_examples, [place.example for place in done.lost]) == (9, 1, [7])
    assert done.rewritten == {"data-00001.tfrecord": "data-00001.repair-2.tfrecord"}
    assert tfdist.data.verify(tmp_path).is_sound
    examples = tfdist.data.open(tmp_path)
    assert labels_of(examples) == [*ALL[:7], *ALL[8:]]
    assert examples.manifest.revision == 2
    after = snapshot(tmp_path)
    assert "data-00001.tfrecord" not in after
    assert "data-00001.index" not in after
    assert after["data-00000.tfrecord"] == before["data-00000.tfrecord"]
    assert not tfdist.data.repair(tmp_path).has_changed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_repaired_twice(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout, num_shards=1)
    for number in (3, 5):
        name, offset = parts(tfdist.data.open(tmp_path), number)["length"]
        flip(tmp_path / name, offset)
        done = tfdist.data.repair(tmp_path)
    assert done.rewritten == {"data-00000.repair-2.tfrecord": "data-00000.repair-3.tfrecord"}
    assert labels_of(tfdist.data.open(tmp_path)) == [0, 1, 2, 4, 5, 7, 8, 9]
    assert sum(name.endswith(".tfrecord") for name in snapshot(tmp_path)) == 1


@pytest.mark.parametrize("layout", ["extent", "generic"])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_index_alone_is_made_anew(tmp_path: Path, layout: str, is_there: bool) -> None:
    write(tmp_path, layout)
    before = snapshot(tmp_path)
    if is_there:
        flip(tmp_path / "data-00001.index", 40)
    else:
        (tmp_path / "data-00001.index").unlink()
    done = tfdist.data.repair(tmp_path)
    assert (done.indexed, done.rewritten, done.lost, done.revision) == (("data-00001.index",), {}, (), 1)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shard_that_was_cut(tmp_path: Path, layout: str) -> None:
    for where in (5, 0):  # within a record, between two
        folder = tmp_path / str(where)
        write(folder, layout, num_shards=2)
        offset = int(tfdist.data.open(folder).locate(np.array([8]))[1][0])
        os.truncate(folder / "data-00001.tfrecord", offset + where)
        done = tfdist.data.repair(folder)
        assert (done.kept, done.lost_examples) == (8, 2)
        assert labels_of(tfdist.data.open(folder)) == ALL[:8]
        assert tfdist.data.verify(folder).is_sound


def test_a_shard_without_anything_whole_goes(tmp_path: Path) -> None:
    write(tmp_path, "extent")
    (tmp_path / "data-00000.tfrecord").write_bytes(bytes(1000))
    done = tfdist.data.repair(tmp_path)
    assert done.rewritten == {"data-00000.tfrecord": ""}
    assert labels_of(tfdist.data.open(tmp_path)) == ALL[5:]
    assert sorted(snapshot(tmp_path)) == ["data-00001.index", "data-00001.tfrecord", "manifest.json"]


def test_nothing_whole_at_all_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "fixed")
    for path in tmp_path.glob("*.tfrecord"):
        path.write_bytes(bytes(path.stat().st_size))
    before = snapshot(tmp_path)
    with refused(CorruptDataError, path=tmp_path, name=None):
        tfdist.data.repair(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_missing_shard_is_given_up_on_request(tmp_path: Path) -> None:
    write(tmp_path, "extent")
    (tmp_path / "data-00000.tfrecord").unlink()
    with refused(CorruptDataError, path=tmp_path, name="data-00000.tfrecord", mentions=["drop_missing"]):
        tfdist.data.repair(tmp_path)
    done = tfdist.data.repair(tmp_path, drop_missing=True)
    assert (done.kept, done.lost_examples) == (5, 5)
    assert labels_of(tfdist.data.open(tmp_path)) == ALL[5:]


def test_what_is_no_example_is_taken_out(tmp_path: Path) -> None:
    from tfdist.data.format.record_framing import frame

    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout, num_shards=1)
        with (folder / "data-00000.tfrecord").open("ab") as file:
            file.write(frame(b"something else"))
        assert not tfdist.data.verify(folder).is_sound
        assert tfdist.data.repair(folder).kept == EXAMPLES
        assert labels_of(tfdist.data.open(folder)) == ALL


def test_the_manifest_is_made_again_on_request(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout)
        examples = list(tfdist.data.open(folder))
        (folder / "manifest.json").unlink()
        with refused(ConfigError, name="manifest.json", path=folder, mentions=["rebuild_manifest"]):
            tfdist.data.repair(folder)
        done = tfdist.data.repair(folder, rebuild_manifest=True)
        assert any("inferred from the records" in said for said in done.inferred)
        found = list(tfdist.data.open(folder))
        assert all(np.array_equal(a[name], b[name]) for a, b in zip(examples, found, strict=True) for name in a)
        assert tfdist.data.open(folder).manifest.layout == layout
        assert tfdist.data.open(folder).manifest.label == "label"
        assert tfdist.data.verify(folder).is_sound


def test_a_manifest_whose_schema_is_legible_keeps_it(tmp_path: Path) -> None:
    tfdist.data.write({"x": np.zeros((4, 2, 2), "uint8"), "label": np.arange(4).astype("uint8")}, tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"digest": "', '"digest": "0'))
    with refused(CorruptDataError, name="digest", path="manifest.json"):
        tfdist.data.open(tmp_path)
    done = tfdist.data.repair(tmp_path, rebuild_manifest=True)
    assert any("still has it" in said for said in done.inferred)
    examples = tfdist.data.open(tmp_path)
    assert examples.schema["x"] == Feature("uint8", (2, 2))
    assert (examples.manifest.layout, examples.manifest.revision) == ("fixed", 2)
    path.write_text("{")
    tfdist.data.repair(tmp_path, rebuild_manifest=True)
    assert tfdist.data.open(tmp_path).schema["x"] == Feature("string")  # the records do not say more
    path.unlink()
    given = Schema({"x": Feature("uint8", (2, 2)), "label": Feature("uint8")})
    tfdist.data.repair(tmp_path, rebuild_manifest=True, schema=given)
    assert tfdist.data.open(tmp_path).schema == given


@pytest.mark.parametrize("layout", LAYOUTS)
def test_manifest_and_records_corrupt_at_once(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout)
    examples = tfdist.data.open(tmp_path)
    for number, part in ((2, "length"), (8, "middle")):
        name, offset = parts(examples, number)[part]
        flip(tmp_path / name, offset)
    (tmp_path / "manifest.json").write_bytes(b"\0" * 500)
    done = tfdist.data.repair(tmp_path, rebuild_manifest=True)
    assert (done.kept, len(done.lost)) == (8, 2)
    assert labels_of(tfdist.data.open(tmp_path)) == [0, 1, 3, 4, 5, 6, 7, 9]
    assert tfdist.data.verify(tmp_path).is_sound


@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_at_any_step_the_directory_is_the_old_or_the_new_one(tmp_path: Path, layout: str) -> None:
    source = tmp_path / "source"
    write(source, layout, num_shards=3)
    examples = tfdist.data.open(source)
    for number, part in ((1, "middle"), (9, "length")):
        name, offset = parts(examples, number)[part]
        flip(source / name, offset)
    if layout != "fixed":
        (source / "data-00001.index").unlink()
    whole = [0, *ALL[2:9]]
    counted = Faulty(storage(shutil.copytree(source, tmp_path / "counted")), None)
    repair_storage(counted)
    assert counted.steps >= 6
    for step in range(counted.steps):
        folder = shutil.copytree(source, tmp_path / f"step {step}")
        with pytest.raises(KilledError):
            repair_storage(Faulty(storage(folder), step))
        found = tfdist.data.open(folder)
        report = found.verify()
        if found.manifest.revision == 1:
            assert report.sound == len(whole)
            assert {place.example for place in report.places if place.examples} == {1, 9}
        else:
            assert report.is_sound
            assert labels_of(found) == whole
        repair_storage(storage(folder))
        assert snapshot(folder) == snapshot(tmp_path / "counted")


def test_killed_while_the_manifest_is_made_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source, "extent", num_shards=2)
    name, offset = parts(tfdist.data.open(source), 7)["length"]
    flip(source / name, offset)
    (source / "manifest.json").unlink()
    counted = Faulty(storage(shutil.copytree(source, tmp_path / "counted")), None)
    repair_storage(counted, rebuild_manifest=True)
    for step in range(counted.steps):
        folder = shutil.copytree(source, tmp_path / f"step {step}")
        with pytest.raises(KilledError):
            repair_storage(Faulty(storage(folder), step), rebuild_manifest=True)
        repair_storage(storage(folder), rebuild_manifest=True)
        assert labels_of(tfdist.data.open(folder)) == [*ALL[:7], *ALL[8:]]
        assert tfdist.data.verify(folder).is_sound


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_has_all_that_is_whole_and_the_directory_stays_as_it_is(tmp_path: Path, layout: str) -> None:
    old, new = tmp_path / "größe 1", tmp_path / "new"
    write(old, layout)
    for number, part in ((2, "length"), (7, "middle")):
        name, offset = parts(tfdist.data.open(old), number)[part]
        flip(old / name, offset)
    before = snapshot(old)
    old.chmod(0o500)  # nothing is written there, not even a lock
    try:
        done = tfdist.data.repair(old, new)
        assert snapshot(old) == before
    finally:
        old.chmod(0o700)
    assert (done.kept, [place.example for place in done.lost], done.url) == (8, [2, 7], str(new))
    assert labels_of(tfdist.data.open(new)) == [0, 1, 3, 4, 5, 6, 8, 9]
    assert tfdist.data.verify(new).is_sound
    assert (tfdist.data.open(new).manifest.revision, tfdist.data.open(new).manifest.label) == (1, "label")
    names = [name for name in snapshot(new) if name.endswith(".tfrecord")]
    assert sorted(names) == ["data-00000.tfrecord", "data-00001.tfrecord"]
    with refused(ConfigError, name="into", path=new, mentions=["data-00000."]):
        tfdist.data.repair(old, new)
    (old / "manifest.json").unlink()
    left = snapshot(old)
    with refused(ConfigError, name="into", mentions=["data-00000."]):  # nothing is written over, whatever it is
        tfdist.data.repair(old, f"{old}/../{old.name}", rebuild_manifest=True)
    assert snapshot(old) == left


def test_a_copy_without_a_manifest_and_without_a_shard(tmp_path: Path) -> None:
    write(tmp_path / "old", "extent", num_shards=3)
    (tmp_path / "old" / "data-00001.tfrecord").unlink()
    with refused(CorruptDataError, path=tmp_path / "old", name="data-00001.tfrecord", mentions=["drop_missing"]):
        tfdist.data.repair(tmp_path / "old", tmp_path / "new")
    assert snapshot(tmp_path / "new") == {}
    assert tfdist.data.repair(tmp_path / "old", tmp_path / "new", drop_missing=True).rewritten == {
        "data-00000.tfrecord": "data-00000.tfrecord",
        "data-00001.tfrecord": "",
        "data-00002.tfrecord": "data-00001.tfrecord",
    }
    (tmp_path / "old" / "manifest.json").unlink()
    done = tfdist.data.repair(tmp_path / "old", tmp_path / "told", rebuild_manifest=True)
    assert any("inferred from the records" in said for said in done.inferred)
    assert list(tfdist.data.open(tmp_path / "told")) == list(tfdist.data.open(tmp_path / "new"))


def test_a_copy_that_was_killed_is_none(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source, "extent", num_shards=3)
    name, offset = parts(tfdist.data.open(source), 1)["middle"]
    flip(source / name, offset)
    before = snapshot(source)
    counted = Faulty(storage(tmp_path / "counted"), None)
    repair_storage(storage(source), counted)
    for step in range(counted.steps):
        folder = tmp_path / f"step {step}"
        with pytest.raises(KilledError):
            repair_storage(storage(source), Faulty(storage(folder), step))
        assert not (folder / "manifest.json").exists() or snapshot(folder) == snapshot(tmp_path / "counted")
    assert snapshot(source) == before


def test_on_a_store(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/digits"
    try:
        for layout in LAYOUTS:
            write(f"{url}/{layout}", layout)
            examples = tfdist.data.open(f"{url}/{layout}")
            flip_stored(examples.storage, *parts(examples, 7)["high byte of length"])
            assert [place.example for place in tfdist.data.verify(f"{url}/{layout}").places] == [7]
            assert tfdist.data.repair(f"{url}/{layout}").kept == 9
            assert labels_of(tfdist.data.open(f"{url}/{layout}")) == [*ALL[:7], *ALL[8:]]
    finally:
        fsspec.filesystem("memory").store.clear()
        fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "extent")
    others = ["data-00000-r1.tfrecord", "notes.txt", "data-00009.index", "extra.tfrecord", "data-00000.repaired.txt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    flip(tmp_path / "data-00000.tfrecord", 20)
    tfdist.data.repair(tmp_path)
    assert [name for name in others if not (tmp_path / name).exists()] == []


def test_what_writes_over_a_repaired_directory_removes_it(tmp_path: Path) -> None:
    write(tmp_path, "extent")
    flip(tmp_path / "data-00000.tfrecord", 20)
    tfdist.data.repair(tmp_path)
    tfdist.data.write({"x": np.zeros((3, 2))}, tmp_path, exists="overwrite")
    assert sorted(snapshot(tmp_path)) == ["data-00000.revision-3.tfrecord", "manifest.json"]


def test_names_of_revisions() -> None:
    assert revised("train.tfrecord-00000-of-00002", 5) == "train.repair-5.tfrecord-00000-of-00002"
    assert revised("plain", 2) == "plain.repair-2"
    for name in ("data-00001.tfrecord", "train.tfrecord-00000-of-00002", "plain", "a.repair-x.tfrecord"):
        assert original(revised(name, 7)) == (original(name)[0], 7)
    assert newest(["b.tfrecord", "a.tfrecord", "a.repair-2.tfrecord", "a.repair-10.tfrecord"]) == [
        "a.repair-10.tfrecord",
        "b.tfrecord",
    ]
    names = ["a.repair-7.tfrecord", "data-00000.revision-5.tfrecord"]
    assert [next_revision(1, some) for some in (names, names[1:], [])] == [8, 6, 2]
    assert [next_revision(9, some) for some in (names, [])] == [10, 10]


def shards(**revisions: list[int]) -> list[str]:
    return [shard_name(number, int(name[1:])) for name, numbers in revisions.items() for number in numbers]


@pytest.mark.parametrize(
    ("names", "is_writing", "kept"),
    [
        (shards(r1=[0, 1]), False, shards(r1=[0, 1])),
        (shards(r1=[0, 1], r2=[2]), False, shards(r1=[0, 1], r2=[2])),  # appended
        (shards(r1=[0, 1], r3=[0], r4=[1]), False, shards(r3=[0], r4=[1])),  # overwritten, then appended
        (shards(r1=[0, 1], r2=[2]), True, shards(r1=[0, 1])),  # the last is not complete yet
        (shards(r1=[0], r2=[0]), True, shards(r1=[0])),
        (shards(r1=[0]), True, shards(r1=[0])),
        (shards(r2=[1], r3=[2]), False, shards(r2=[1], r3=[2])),  # the first shard is lost
        (["a.tfrecord", *shards(r1=[0], r2=[0])], False, ["a.tfrecord", *shards(r2=[0])]),
        (["a.tfrecord"], False, ["a.tfrecord"]),
    ],
)
def test_the_shards_of_the_last_writing(names: list[str], is_writing: bool, kept: list[str]) -> None:
    for order in (names, names[::-1]):
        assert sorted(of_one_writing(order, is_writing=is_writing)) == sorted(kept)


def test_what_no_manifest_names_and_was_overwritten_is_superseded() -> None:
    old, used = shards(r1=[0], r2=[1]), shards(r3=[0], r4=[1])
    assert superseded(["a.tfrecord", *old, *used, *shards(r5=[0])], used) == old
    assert superseded(old, ["a.tfrecord"]) == []


def test_the_report_is_json(tmp_path: Path) -> None:
    write(tmp_path, "fixed")
    flip(tmp_path / "data-00000.tfrecord", 20)
    done = tfdist.data.repair(tmp_path)
    assert json.loads(json.dumps(done.to_json()))["lost_examples"] == 1
    assert "is now data-00000.repair-2.tfrecord" in str(done)


def test_a_manifest_that_cannot_be_read_is_not_replaced_silently(tmp_path: Path) -> None:
    write(tmp_path, "fixed")
    (tmp_path / "manifest.json").write_text("{}")
    before = snapshot(tmp_path)
    with refused(CorruptDataError, name="format", path="manifest.json", mentions=["rebuild_manifest"]):
        tfdist.data.repair(tmp_path)
    assert snapshot(tmp_path) == before


def test_what_is_no_folder_is_refused_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "none"):
        with refused(ConfigError, name="directory", path=tmp_path / name):
            tfdist.data.repair(tmp_path / name)
    with refused(ConfigError, name="directory", path=tmp_path / "none"):
        tfdist.data.index(tmp_path / "none")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
