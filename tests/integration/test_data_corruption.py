"""A flipped bit costs one example through `tfdist.data.read`, too: in NumPy, with the compiled ops, from a store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorflow as tf

from tests.corruption import LAYOUTS, PARTS, flip_stored, parts, write
from tfdist import data, native
from tfdist.errors import CorruptDataError

pytestmark = [pytest.mark.quick, pytest.mark.timeout(120)]

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
    with pytest.raises((CorruptDataError, tf.errors.OpError)) as raised:
        list(reading)
    assert f"example {first} is corrupt: {name}, byte {int(offset[0])}." in str(raised.value)
    assert "tfdist data repair" in str(raised.value)


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


def test_a_record_that_is_no_example_is_an_error_of_the_pipeline(tmp_path: Path) -> None:
    """Its checksum fits, so whoever wrote it meant it: `verify` says where it is."""
    from tfdist.data.records import frame
    from tfdist.data.shard import store_index
    from tfdist.data.shard_index import Index

    write(tmp_path, "generic", num_shards=1)
    examples = data.open(tmp_path)
    offsets = examples.offsets
    path = tmp_path / "data-00000.tfrecord"
    length = int(offsets[5] - offsets[4]) - 16
    content = path.read_bytes()
    path.write_bytes(content[: offsets[4]] + frame(b"\n\x7f".ljust(length, b"x")) + content[offsets[5] :])
    store_index(examples.storage, path.name, Index(offsets, {"value:label": examples.column("value:label")}))
    with pytest.raises((CorruptDataError, tf.errors.OpError)):
        list(data.read(tmp_path, global_batch_size=5))
    assert [place.example for place in data.verify(tmp_path).places] == [4]
