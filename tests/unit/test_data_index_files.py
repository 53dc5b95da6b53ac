"""TFRecord files of others are taken as they are, with the best layout that holds for all their records."""

from pathlib import Path
from typing import Any

import numpy as np

import tfdist
from tests.corruption import snapshot
from tests.refusals import refused
from tfdist.data.format import example
from tfdist.data.format.record_framing import frame
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError, StorageError

_FEATURES = {bytes: Feature("string", (None,)), float: Feature("float32", (None,)), int: Feature("int64", (None,))}


def record(**values: list[Any]) -> bytes:
    """A tf.train.Example as other writers make it: integers in as few bytes as each needs."""
    entries = []
    for name, value in sorted(values.items()):
        feature = _FEATURES[type(value[0])] if value else _FEATURES[int]
        entries.append(example.entry(name, feature, example.content_of(feature, value)))
    return example.joined(entries)


def put(path: Path, *payloads: bytes) -> None:
    path.write_bytes(b"".join(map(frame, payloads)))


def test_pictures_with_a_label_are_read_without_parsing(tmp_path: Path) -> None:
    put(tmp_path / "b.tfrecord", *(record(image=[bytes([i]) * i], label=[i]) for i in range(3, 6)))
    put(tmp_path / "a.tfrecord", *(record(image=[bytes([i]) * i], label=[i * 100]) for i in range(3)))
    before = snapshot(tmp_path)
    manifest = tfdist.data.index(tmp_path)
    assert (manifest.layout, manifest.label, manifest.examples) == ("extent", "label", 6)
    assert dict(manifest.schema) == {"image": Feature("string"), "label": Feature("int64")}
    assert [found["image"] for found in tfdist.data.open(tmp_path)] == [bytes([i]) * i for i in range(6)]
    assert tfdist.data.open(tmp_path).integers("label").tolist() == [0, 100, 200, 3, 4, 5]
    after = snapshot(tmp_path)
    assert sorted(after.keys() - before.keys()) == ["a.index", "b.index", "manifest.json"]
    assert {name: after[name] for name in before} == before
    assert tfdist.data.verify(tmp_path).is_sound
    with refused(ConfigError, name="exists", received="raise", path=tmp_path):
        tfdist.data.index(tmp_path)
    assert tfdist.data.index(tmp_path, exists="overwrite") == manifest


def test_the_schema_is_that_of_all_records(tmp_path: Path) -> None:
    many = [record(x=[1.0, 2.0], n=[i]) for i in range(300)]  # more than are looked at first
    put(tmp_path / "a.tfrecord", *many)
    put(tmp_path / "b.tfrecord", record(x=[1.0], n=[1]))
    assert dict(tfdist.data.index(tmp_path).schema) == {"x": Feature("float32", (None,)), "n": Feature("int64")}
    put(tmp_path / "b.tfrecord", record(x=[1.0, 2.0], n=[1], more=[b"a"]))
    found = tfdist.data.index(tmp_path, exists="overwrite")
    assert dict(found.schema) == {
        "x": Feature("float32", (2,)),
        "n": Feature("int64"),
        "more": Feature("string", (None,)),  # which most do not have
    }
    assert found.layout == "generic"
    assert tfdist.data.verify(tmp_path).is_sound


def test_the_fixed_layout_is_for_records_that_have_it(tmp_path: Path) -> None:
    put(tmp_path / "a.tfrecord", *(record(x=[1.0, 2.0], label=[i]) for i in (1, 2, 300)))
    assert tfdist.data.index(tmp_path).layout == "generic"
    ours = tmp_path / "ours"
    tfdist.data.write({"x": np.zeros((5, 3), "float32"), "label": np.arange(5)}, ours)
    before = list(tfdist.data.open(ours))
    (ours / "manifest.json").unlink()
    assert tfdist.data.index(ours).layout == "fixed"
    assert sorted(snapshot(ours)) == ["data-00000.tfrecord", "manifest.json"]
    after = list(tfdist.data.open(ours))
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(before, after, strict=True) for name in a)


def test_a_schema_that_is_given(tmp_path: Path) -> None:
    pixels = np.arange(4, dtype=np.uint8).reshape(2, 2)
    put(tmp_path / "a.tfrecord", *(record(image=[pixels.tobytes()], label=[i]) for i in range(3)))
    schema = Schema({"image": Feature("uint8", (2, 2)), "label": Feature("uint8")})
    assert tfdist.data.index(tmp_path, schema=schema, label="label").schema == schema
    assert np.array_equal(tfdist.data.open(tmp_path)[1]["image"], pixels)
    facts = ["a.tfrecord", "byte 0", "record 0", "4 bytes"]
    with refused(CorruptDataError, mentions=facts):
        tfdist.data.index(tmp_path, schema=Schema({"image": Feature("uint8", (3, 2))}), exists="overwrite")
    with refused(ConfigError, name="label", received="y", mentions=["'image', 'label'"]):
        tfdist.data.index(tmp_path, label="y", exists="overwrite")


def test_files_that_cannot_be_taken(tmp_path: Path) -> None:
    with refused(ConfigError, path=tmp_path, mentions=["0 files"]):
        tfdist.data.index(tmp_path)
    named = tmp_path / "named"
    named.mkdir()
    put(named / "a\nb.tfrecord", record(x=[1]))
    with refused(ConfigError, name="name", received="a\nb.tfrecord"):
        tfdist.data.index(named)
    linked = tmp_path / "linked"
    linked.mkdir()
    put(tmp_path / "secret", record(x=[1]))
    (linked / "a.tfrecord").symlink_to(tmp_path / "secret")
    with refused(StorageError, path=linked / "a.tfrecord", mentions=["--follow-symlinks"]):
        tfdist.data.index(linked)
    kinds = tmp_path / "kinds"
    kinds.mkdir()
    put(kinds / "a.tfrecord", record(x=[1]), record(x=[1.0]))
    with refused(ConfigError, name="x", received="float", mentions=["int64"]):
        tfdist.data.index(kinds)
    for folder in (named, linked, kinds):
        assert not list(folder.glob("manifest.json")) + list(folder.glob("*.index"))


def test_corrupt_files_are_refused_and_can_be_repaired(tmp_path: Path) -> None:
    put(tmp_path / "a.tfrecord", *(record(x=[i]) for i in range(5)))
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    with refused(CorruptDataError, mentions=["a.tfrecord", "record 2", "--rebuild-manifest"]):
        tfdist.data.index(tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    assert tfdist.data.repair(tmp_path, rebuild_manifest=True).kept == 4
    assert [int(found["x"]) for found in tfdist.data.open(tmp_path)] == [0, 1, 3, 4]


def test_which_files_are_taken(tmp_path: Path) -> None:
    put(tmp_path / "train.tfrecord-00000-of-00002", record(x=[1]))
    put(tmp_path / "train.tfrecord-00001-of-00002", record(x=[2]))
    put(tmp_path / "empty.tfrecord")
    (tmp_path / "README.md").write_text("about tfrecords and more")
    assert [shard.file for shard in tfdist.data.index(tmp_path).shards] == [
        "train.tfrecord-00000-of-00002",
        "train.tfrecord-00001-of-00002",
    ]
    other = tmp_path / "other"
    other.mkdir()
    put(other / "part-0", record(x=[1]))
    (other / "labels.txt").write_text("a text that is no record")
    assert [shard.file for shard in tfdist.data.index(other).shards] == ["part-0"]


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    put(tmp_path / "a.tfrecord", record(x=[1]))
    (tmp_path / "a.index").write_text("0 35")
    with refused(ConfigError, name="a.index", path=tmp_path, mentions=["a.tfrecord"]):
        tfdist.data.index(tmp_path)
    assert (tmp_path / "a.index").read_text() == "0 35"
    (tmp_path / "a.index").unlink()
    put(tmp_path / "a", record(x=[1]))
    (tmp_path / "a").rename(tmp_path / "a.index.tfrecord")
    assert len(tfdist.data.index(tmp_path).shards) == 2


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    put(tmp_path / "a.tfrecord", b"text", b"more text")
    with refused(ConfigError, path=tmp_path, mentions=["tf.train.Example"]):
        tfdist.data.index(tmp_path)
