"""TFRecord files of others are opened as they are: whatever they are called, however they are compressed."""

import contextlib
import errno
import gzip
import logging
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import tfdist
from tests.corruption import snapshot
from tests.refusals import refused
from tests.unit.test_data_index_files import put, record
from tests.unit.test_data_sequences import sequence
from tfdist.data.format.record_framing import frame
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError, StorageError
from tfdist.storage.local_storage import LocalStorage

PACK = {"": bytes, ".gz": gzip.compress, ".zlib": zlib.compress}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "größe").mkdir()
    return tmp_path / "größe"


def row(number: int) -> bytes:
    """Tokens, a box, texts of any number, and a feature that not every record has."""
    more: dict[str, list[Any]] = {"weight": [0.5]} if number % 3 == 0 else {"tags": [b"a"] * (number % 3)}
    return record(ids=[number, 300 * number, -1], box=[0.5, 1.0, 2.0, 3.0], label=[number], **more)


SCHEMA = {
    "box": Feature("float32", (4,)),
    "ids": Feature("int64", (3,), "int64"),
    "label": Feature("int64"),
    "tags": Feature("string", (None,)),
    "weight": Feature("float32", (None,)),
}


def labels(directory: Any, **options: Any) -> list[int]:
    examples = tfdist.data.open(directory, **options)
    for example in examples:
        number = int(example["label"])
        assert example["ids"].tolist() == [number, 300 * number, -1]
        assert len(example.get("weight", ())) == (number % 3 == 0)
    return [int(example["label"]) for example in examples]


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("name", ["train.tfrecord", "train.record", "train-{:05}-of-01024", "part_{}", "a.tfrecord.gz"])
def test_names_and_compression_are_told_by_the_bytes(
    folder: Path, name: str, packed: str, caplog: pytest.LogCaptureFixture
) -> None:
    for shard in range(2 if "{" in name else 1):
        content = b"".join(frame(row(number)) for number in range(5 * shard, 5 * shard + 5))
        (folder / name.format(shard)).write_bytes(PACK[packed](content))
    (folder / "README.md").write_text("about the records")
    (folder / "empty.tfrecord").touch()
    before, count = snapshot(folder), 10 if "{" in name else 5
    for _ in range(2):
        assert labels(folder) == list(range(count))
    assert snapshot(folder) == before
    assert dict(tfdist.data.open(folder).schema) == SCHEMA
    assert tfdist.data.verify(folder).is_sound
    assert tfdist.data.info(folder).examples == count
    shown = [entry.message for entry in caplog.records if "Their records have: " in entry.message]
    assert len(shown) == 1  # at the first call
    assert "ids int64[3], label int64[] (label), tags string[any]" in shown[0]


def test_a_first_record_may_look_like_a_compressed_file(folder: Path) -> None:
    payload = record(label=[1], text=[b"x" * 35_000])
    payload = record(label=[1], text=[b"x" * (35_000 + 0x8B1F - len(payload))])
    put(folder / "a", payload)
    assert (folder / "a").read_bytes()[:2] == b"\x1f\x8b"
    assert len(tfdist.data.open(folder)) == 1
    assert tfdist.data.index(folder).examples == 1


def test_files_that_change_are_looked_at_again(folder: Path) -> None:
    put(folder / "a.tfrecord", row(0), row(1))
    assert labels(folder) == [0, 1]
    put(folder / "b.tfrecord", row(2))
    assert labels(folder) == [0, 1, 2]
    (folder / "a.tfrecord").write_bytes(gzip.compress(b"".join(map(frame, [row(5), row(6)]))))
    assert labels(folder) == [5, 6, 2]
    put(folder / "a.tfrecord", row(7))
    assert labels(folder) == [7, 2]


@pytest.mark.parametrize("packed", PACK)
def test_what_the_cache_has_lost_is_made_again(folder: Path, cache: Path, packed: str) -> None:
    (folder / "a").write_bytes(PACK[packed](frame(row(4))))
    for damage in (b"", b"{}", None):
        assert labels(folder) == [4]
        (manifest,) = cache.rglob("manifest.json")
        manifest.unlink() if damage is None else manifest.write_bytes(damage)
    assert labels(folder) == [4]


def test_files_of_one_folder_by_a_wildcard(folder: Path) -> None:
    for number, name in enumerate(["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]):
        put(folder / name, row(number))
    sets = [str(folder / "test-*"), str(folder / "train-*"), f"{folder}/* "]
    with refused(ConfigError, path=folder, mentions=sets):
        tfdist.data.open(folder)
    assert labels(folder / "train-*") == [0, 1]
    assert labels(str(folder / "test-*")) == [2]
    assert labels(folder / "train-00001-of-00002") == [1]
    assert labels(folder / "*") == [2, 0, 1]
    (folder / "more").mkdir()
    put(folder / "more" / "train-0", row(3))
    with refused(ConfigError, path=f"{folder}/**/train-*", mentions=["2 folders", "tfdist data write"]):
        tfdist.data.open(f"{folder}/**/train-*")
    (folder / "notes.txt").write_text("no record at all")
    with refused(ConfigError, path=folder / "notes.txt", mentions=["TFRecord"]):
        tfdist.data.open(folder / "notes.txt")
    with refused(ConfigError, path=folder / "nothing-*", mentions=["no file"]):
        tfdist.data.open(folder / "nothing-*")


def test_a_store_is_read_in_the_same_way() -> None:
    url, store = f"memory://{uuid.uuid4().hex}", fsspec.filesystem("memory")
    try:
        for number, name in enumerate(["train-00000-of-00002", "train-00001-of-00002"]):
            store.pipe(f"{url}/data/{name}", frame(row(number)))
            store.pipe(f"{url}/packed/{name}", zlib.compress(frame(row(number))))
        for directory in (f"{url}/data", f"{url}/data/train-*", f"{url}/packed"):
            for _ in range(2):
                assert labels(directory) == [0, 1]
    finally:
        store.store.clear()
        store.pseudo_dirs[:] = [""]


def test_a_later_record_decides_too(folder: Path) -> None:
    put(folder / "a.tfrecord", *(record(ids=[i, i]) for i in range(300)))
    put(folder / "b.tfrecord", record(ids=[1, 2, 3]))
    assert dict(tfdist.data.open(folder).schema) == {"ids": Feature("int64", (None,))}
    put(folder / "a.tfrecord", *(record(ids=[i, i]) for i in range(300)), record(ids=[7]))
    with refused(ConfigError, name="ids", received=1, path=folder / "a.tfrecord", mentions=["Example 300"]):
        tfdist.data.write(str(folder / "a.tfrecord"), folder / "out")


@pytest.mark.parametrize("packed", PACK)
def test_a_schema_that_says_an_array(folder: Path, tmp_path: Path, packed: str) -> None:
    """Lists of integers are what others keep arrays as; said to be an array, they are one."""
    (folder / "a").write_bytes(PACK[packed](b"".join(frame(record(ids=[i, 2, 3, 4])) for i in range(5))))
    schema = Schema({"ids": Feature("int64", (2, 2))})
    tfdist.data.index(folder, schema=schema)
    assert [example["ids"].tolist() for example in tfdist.data.open(folder)] == [[[i, 2], [3, 4]] for i in range(5)]
    tfdist.data.write(str(folder / "a"), tmp_path / "out", schema=schema)
    assert tfdist.data.open(tmp_path / "out").manifest.layout == "fixed"
    assert tfdist.data.open(tmp_path / "out")[4]["ids"].tolist() == [[4, 2], [3, 4]]


@pytest.mark.parametrize("packed", PACK)
def test_lists_of_one_length_stay_lists_when_they_are_written(folder: Path, tmp_path: Path, packed: str) -> None:
    (folder / f"a.tfrecord{packed}").write_bytes(PACK[packed](b"".join(frame(row(i)) for i in range(5))))
    tfdist.data.write(str(folder), tmp_path / "out")
    assert dict(tfdist.data.open(tmp_path / "out").schema) == SCHEMA
    assert labels(tmp_path / "out") == list(range(5))


@pytest.mark.parametrize("packed", [".gz", ".zlib"])
def test_compressed_files_that_are_damaged(folder: Path, packed: str) -> None:
    content = PACK[packed](b"".join(frame(record(x=[os.urandom(3000)])) for _ in range(20)))
    for damaged in (content[:-1000], content[:30_000] + bytes(5000) + content[35_000:]):
        (folder / "a.tfrecord").write_bytes(damaged)
        with refused(CorruptDataError, path=folder / "a.tfrecord"):
            tfdist.data.open(folder)


def test_a_folder_that_cannot_be_written(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "a.tfrecord", row(0), row(1))
    whole = LocalStorage.lock

    @contextlib.contextmanager
    def lock(self: LocalStorage, **options: Any) -> Iterator[None]:
        if self.local == folder:
            raise StorageError(errno.EROFS, "Read-only file system")
        with whole(self, **options):
            yield

    monkeypatch.setattr(LocalStorage, "lock", lock)
    schema = Schema({name: feature for name, feature in SCHEMA.items() if name != "box"})
    assert tfdist.data.index(folder, schema=schema).examples == 2
    assert sorted(snapshot(folder)) == ["a.tfrecord"]
    assert tfdist.data.open(folder).schema == schema  # which was asked for
    assert list(cache.rglob("manifest.json"))


def test_what_tfdist_has_not_finished_is_not_taken_for_others(folder: Path) -> None:
    tfdist.data.write({"x": np.zeros((5, 2), "float32")}, folder)
    (folder / "manifest.json").unlink()
    with refused(ConfigError, name="manifest.json", path=folder):
        tfdist.data.open(folder)


def test_pictures_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    put(folder / "a", *(record(image=[b"\xff\xd8\xff" + bytes([i])], text=[b"BMI"]) for i in range(3)))
    schema = tfdist.data.open(folder).schema
    assert schema["image"].is_image
    assert not schema["text"].is_image
    assert "image string[] (picture)" in caplog.text


def test_one_split_of_a_folder(folder: Path, tmp_path: Path) -> None:
    """The name of the indexed split is kept beside the index, in the folder or in the cache."""
    for pack in (bytes, gzip.compress):
        where = tmp_path / pack.__name__
        where.mkdir()
        for number, name in enumerate(["test.tfrecord", "train.tfrecord"]):
            (where / name).write_bytes(pack(frame(row(number))))
        for way in (tfdist.data.open, tfdist.data.index):
            with refused(ConfigError, path=where, mentions=["several", "train"]):
                way(where)
        with refused(ConfigError, name="split", received="dev", path=where, mentions=["train, test"]):
            tfdist.data.index(where, split="dev")
        assert labels(where / "*") == [0, 1]
        tfdist.data.index(where, split="train")
        assert labels(where) == [1]
    (where / "train.tfrecord").write_bytes(gzip.compress(frame(row(5))))
    assert labels(where) == [5]
    with refused(ConfigError, name="split", received="train", path=where / "*", mentions=["one set"]):
        tfdist.data.index(where / "*", split="train")


def test_links_out_of_a_folder(folder: Path, tmp_path: Path) -> None:
    for pack in (bytes, gzip.compress):
        (tmp_path / "blob").write_bytes(pack(frame(row(4))))
        (folder / "a.tfrecord").unlink(missing_ok=True)
        (folder / "a.tfrecord").symlink_to(tmp_path / "blob")
        for directory in (folder, folder / "a*"):
            for _ in range(2):
                with refused(StorageError, path=folder / "a.tfrecord", mentions=["--follow-symlinks"]):
                    tfdist.data.open(directory)
                assert labels(directory, follow_symlinks=True) == [4]
        assert tfdist.data.verify(folder, follow_symlinks=True).is_sound
        (tmp_path / "blob").unlink()
        with refused(ConfigError, path=folder / "a.tfrecord", mentions=[str(tmp_path / "blob")]):
            tfdist.data.open(folder, follow_symlinks=True)


@pytest.mark.parametrize("packed", PACK)
def test_the_manifest_does_not_tell_how_often_it_was_made(
    folder: Path, tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on several machines compare manifests, and each has a cache of its own."""
    (folder / "a").write_bytes(PACK[packed](frame(row(1))))
    assert labels(folder) == [1]
    (folder / "a").write_bytes(PACK[packed](frame(row(2)) + frame(row(3))))
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "other"))
    fresh = tfdist.data.open(folder)
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    again = tfdist.data.open(folder)
    assert again.manifest == fresh.manifest
    assert [int(example["label"]) for example in again] == [2, 3]


def test_swapped_files_are_noticed(folder: Path) -> None:
    for number, name in enumerate(["a", "b"], 1):
        put(folder / name, record(label=[number]))
        os.utime(folder / name, ns=(10**18, 10**18))
    examples = tfdist.data.open(folder)
    (folder / "a").rename(folder / "c")
    (folder / "b").rename(folder / "a")
    (folder / "c").rename(folder / "b")
    with refused(CorruptDataError, path="a", mentions=["of b: ", str(folder)]):
        examples[0]


def test_sequences_are_refused_or_told(folder: Path, tmp_path: Path) -> None:
    content = sequence({"label": [1]}, {"words": [[b"a"], [b"b"]]}) + sequence({"label": [2]}, {"words": []})
    (folder / "a").write_bytes(content)
    with refused(ConfigError, name="words", path="a", mentions=["tf.train.SequenceExample"]):
        tfdist.data.open(folder)
    assert tfdist.data.index(folder, schema=Schema({"label": Feature("int64")})).examples == 2
    (tmp_path / "packed").write_bytes(gzip.compress(content))  # which is written anew
    assert [list(example["words"]) for example in tfdist.data.open(tmp_path / "packed")] == [[b"a", b"b"], []]
