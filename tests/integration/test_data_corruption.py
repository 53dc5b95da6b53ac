"""A flipped bit costs one example through `tfdist.data.read`, too: in NumPy, with the compiled ops, from a store."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorflow as tf

from tests.corruption import LAYOUTS, PARTS, flip_stored, parts, write
from tfdist import data, native
from tfdist.errors import CorruptDataError, DataChangedError, MissingFileError

pytestmark = pytest.mark.quick

COUNT = 50
BATCH = 8
STEPS = 7
BAD = dict(zip(range(3, 3 + 5 * len(PARTS), 5), PARTS, strict=True))  # example -> which part of it has a flipped bit
PATHS = ("numpy", "ops", "store")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], str]]:
    """A directory per layout and place, whose examples in `BAD` are corrupt."""
    root, found = tmp_path_factory.mktemp("corrupt"), {}
    for layout in LAYOUTS:
        for where, url in (("folder", str(root / layout)), ("store", f"memory://corruption/{layout}")):
            write(url, layout, count=COUNT, num_shards=3)
            examples = data.open(url)
            for number, part in BAD.items():
                flip_stored(examples.storage, *parts(examples, number)[part])
            found[layout, where] = url
    yield found
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def read(directories: dict[tuple[str, str], str], layout: str, path: str, **options: Any) -> data.Reading:
    if path == "ops" and native.records() is None:
        pytest.skip("the ops cannot be compiled here")
    where = directories[layout, "store" if path == "store" else "folder"]
    return data.read(where, global_batch_size=BATCH, ops=path == "ops", **options)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_skipping_loses_these_and_keeps_the_steps(
    directories: dict[tuple[str, str], str], layout: str, path: str
) -> None:
    reading = read(directories, layout, path, on_corrupt="skip")
    for _ in range(2):
        batches = [(labels.numpy(), weights.numpy()) for _, labels, weights in reading]
        assert len(batches) == STEPS
        assert {len(labels) for labels, _ in batches} == {BATCH}
        found = [int(i) for labels, weights in batches for i in labels[weights > 0]]
        assert sorted(found) == [number for number in range(COUNT) if number not in BAD]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_raising_names_shard_and_byte(directories: dict[tuple[str, str], str], layout: str, path: str) -> None:
    reading = read(directories, layout, path, order="none")
    examples = data.open(directories[layout, "store" if path == "store" else "folder"])
    first = min(BAD)
    shard, offset, _ = examples.locate(np.array([first]))
    name = examples.manifest.shards[int(shard[0])].file
    with pytest.raises(CorruptDataError) as raised:
        list(reading)
    assert f"example {first} is corrupt: {name}, byte {int(offset[0])}." in str(raised.value)
    assert "tfdist data repair" in str(raised.value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", ["overwritten", "removed and written again"])
def test_an_epoch_in_which_the_directory_becomes_another(path: str, ending: str, tmp_path: Path) -> None:
    """Pictures show their labels; names are the same where all was removed, sizes always."""
    where: Any = f"memory://becomes/{ending}" if path == "store" else tmp_path / "train"

    def write_all(generation: int) -> None:
        labels = np.arange(600) + generation
        pictures = [b"%04d" % n * 50 for n in labels]
        data.write({"image": pictures, "label": labels}, where, num_shards=6, exists="overwrite")

    write_all(1000)
    before = {shard.file for shard in data.open(where).manifest.shards}
    reading = data.read(where, global_batch_size=20, ops=path == "ops", cache=None)
    seen = 0

    def epoch() -> None:
        nonlocal seen
        for image, label, _ in reading:
            assert [int(text[:4]) for text in image.numpy()] == label.numpy().tolist()
            assert set(label.numpy() // 1000) == {1}
            seen += 1
            if seen == 2 and ending == "overwritten":
                write_all(2000)
            elif seen == 2:
                fsspec.filesystem("memory").rm(where, recursive=True) if path == "store" else shutil.rmtree(where)
                write_all(2000)
                assert {shard.file for shard in data.open(where).manifest.shards} == before
        list(reading)  # where all batches of the epoch were there already

    # a batch that is read ahead may look while a shard is removed and the manifest is not yet
    with pytest.raises((DataChangedError, MissingFileError), match=r"written anew|data-\d+.tfrecord cannot be read"):
        epoch()
    assert seen >= 2
    with pytest.raises(DataChangedError, match="written anew"):
        list(reading)
    again = data.read(where, global_batch_size=20, ops=path == "ops")
    assert {int(text[:4]) // 1000 for image, *_ in again for text in image.numpy()} == {2}


@pytest.mark.parametrize("path", PATHS)
def test_a_shard_that_is_gone_is_named(path: str, tmp_path: Path) -> None:
    where: Any = "memory://gone/train" if path == "store" else tmp_path
    pictures = [b"%04d" % n * 50 for n in range(60)]
    data.write({"image": pictures, "label": np.arange(60)}, where, num_shards=3, exists="overwrite")
    reading = data.read(where, global_batch_size=20, order="none", ops=path == "ops", cache=None)
    if path == "store":
        fsspec.filesystem("memory").rm("gone/train/data-00001.tfrecord")
    else:
        (tmp_path / "data-00001.tfrecord").unlink()
    with pytest.raises(MissingFileError, match=r"data-00001\.tfrecord cannot be read"):
        list(reading)


@pytest.mark.parametrize("path", PATHS)
def test_swapped_shards_are_found_when_reading_begins(path: str, tmp_path: Path) -> None:
    where = "memory://swapped/train" if path == "store" else str(tmp_path)
    data.write({"image": [b"%04d" % n * 9 for n in range(60)], "label": np.arange(60)}, where, num_shards=3)
    place = data.open(where).storage
    contents = [place.read(f"data-0000{n}.tfrecord") for n in (0, 2)]
    for n, content in zip((2, 0), contents, strict=True):
        with place.create(f"data-0000{n}.tfrecord") as file:
            file.write(content)
    with pytest.raises(CorruptDataError, match=r"data-0000[02].tfrecord .* data-0000[02].tfrecord"):
        list(data.read(where, global_batch_size=8, ops=path == "ops", verify="never", on_corrupt="skip"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_verifying_comes_before_the_first_batch(directories: dict[tuple[str, str], str], layout: str) -> None:
    with pytest.raises(CorruptDataError) as raised:
        read(directories, layout, "numpy", on_corrupt="verify")
    assert f"example {min(BAD)}: " in str(raised.value)
    assert "tfdist data repair" in str(raised.value)


def test_a_repaired_directory_is_read(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout, count=COUNT, num_shards=3)
        examples = data.open(folder)
        for number, part in BAD.items():
            flip_stored(examples.storage, *parts(examples, number)[part])
        assert data.repair(folder).lost_examples == len(BAD)
        reading = data.read(folder, global_batch_size=BATCH, on_corrupt="verify")
        found = [int(i) for _, labels, weights in reading for i in labels.numpy()[weights.numpy() > 0]]
        assert sorted(found) == [number for number in range(COUNT) if number not in BAD]


def test_files_of_tensorflow_are_indexed_as_they_are(tmp_path: Path) -> None:
    def example(number: int) -> bytes:
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([number]) * number])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }
        return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    for shard in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"part-{shard}.tfrecord")) as writer:
            for number in range(shard * 10, shard * 10 + 10):
                writer.write(example(number))
    assert data.index(tmp_path).layout == "extent"
    for x, labels in data.read(tmp_path, global_batch_size=5, tail="keep"):
        assert x.numpy().tolist() == [bytes([number]) * number for number in labels.numpy()]
    assert data.verify(tmp_path).is_sound


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_of_tensorflow_are_read_at_the_first_call(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def example(number: int) -> bytes:
        features = {
            "tokens": tf.train.Feature(int64_list=tf.train.Int64List(value=[number, -1, 2**40 + number])),
            "box": tf.train.Feature(float_list=tf.train.FloatList(value=[number, 0.5])),
            "words": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"w"] * (number % 3))),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }
        if number % 2:
            features["weight"] = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5]))
            features["nothing"] = tf.train.Feature()
        return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    for shard in range(3):
        path = tmp_path / "data" / f"train-{shard:05}-of-00003"
        path.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for number in range(shard * 7, shard * 7 + 7):
                writer.write(example(number))
    for ops in (None, False):
        seen = []
        for x, labels, weights in data.read(tmp_path / "data", global_batch_size=5, ops=ops):
            for row, (number, counts) in enumerate(zip(labels.numpy().tolist(), weights.numpy(), strict=True)):
                assert x["tokens"][row].numpy().tolist() == [number, -1, 2**40 + number]
                assert x["box"][row].numpy().tolist() == [number, 0.5]
                assert x["words"][row].numpy().tolist() == [b"w"] * (number % 3)
                assert x["weight"][row].numpy().tolist() == [0.5] * (number % 2)
                seen += [number] if counts else []
        assert sorted(seen) == list(range(21))
    assert caplog.text.count("tokens int64[3]") == 1
    shape = data.read(tmp_path / "data" / "train-*", global_batch_size=5).element_spec[0]["tokens"].shape
    assert shape.as_list() == [5, 3]


def test_a_record_that_is_no_example_is_an_error_of_the_pipeline(tmp_path: Path) -> None:
    """Its checksum fits, so whoever wrote it meant it: `verify` says where it is."""
    from tfdist.data.format.record_framing import frame
    from tfdist.data.format.shard_index import Index
    from tfdist.data.writing.shard import store_index

    write(tmp_path, "generic", num_shards=1)
    examples = data.open(tmp_path)
    offsets = examples.offsets
    path = tmp_path / "data-00000.tfrecord"
    length = int(offsets[5] - offsets[4]) - 16
    content = path.read_bytes()
    path.write_bytes(content[: offsets[4]] + frame(b"\n\x7f".ljust(length, b"x")) + content[offsets[5] :])
    store_index(examples.storage, path.name, Index(offsets, {"value:label": examples.numbers("label")}))
    with pytest.raises((CorruptDataError, tf.errors.OpError)):
        list(data.read(tmp_path, global_batch_size=5))
    assert [place.example for place in data.verify(tmp_path).places] == [4]
    reading = data.read(tmp_path, global_batch_size=5, on_corrupt="skip")
    found = sorted(int(i) for _, labels, weights in reading for i in labels.numpy()[weights.numpy() > 0])
    assert found == [number for number in range(len(examples)) if number != 4]
