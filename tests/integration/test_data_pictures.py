"""Pictures that cannot be decoded: refused when they are written, one example each when they are read."""

import json
import logging
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.integration.agents import says
from tests.refusals import refused
from tfdist import data
from tfdist.errors import ConfigError, CorruptDataError

COUNT = 24
BAD = (5, 17)
BATCH = 7


def pixels(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 255, (30, 40, 3), np.uint8)


def jpeg(number: int) -> bytes:
    return bytes(tf.io.encode_jpeg(pixels(number)).numpy())


def bmp() -> bytes:
    header = struct.pack("<IHHIIiiHHIIiiII", 54 + 48, 0, 0, 54, 40, 4, 4, 1, 24, 0, 48, 2835, 2835, 0, 0)
    return b"BM" + header + bytes(range(48))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of JPEG files, of which some were cut off as a transfer that ended early leaves them."""
    for number in range(COUNT):
        path = tmp_path / "photos" / f"class {number // 12}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = jpeg(number)
        path.write_bytes(content[: len(content) // 2] if number in BAD else content)
    return tmp_path / "photos"


WRITE = """
import json, psutil, sys, tfdist
photos, out, *options = sys.argv[1:]
options = json.loads(options[0])
try:
    tfdist.data.write(photos, out, **options)
    said = ""
except tfdist.errors.TfdistError as error:
    said = type(error).__name__ + ": " + str(error)
children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
print(json.dumps([said, "tensorflow" in sys.modules, [command for command in children if "task_worker" in command]]))
"""


def write(photos: Path, out: Path, **options: Any) -> str:
    """Write in a process that must not load TensorFlow, whose start is up to a strategy; return the message."""
    run = [sys.executable, "-c", WRITE, str(photos), str(out), json.dumps(options)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=800, check=True)
    said, has_tensorflow, children = json.loads(done.stdout)
    assert not has_tensorflow
    assert said or not children
    assert done.stderr == ""
    return str(said)


def test_broken_pictures_are_not_written(photos: Path, tmp_path: Path) -> None:
    """Broken pictures of all splits are reported at once, and nothing is written."""
    for split in ("train", "test"):
        shutil.copytree(photos, tmp_path / "both" / split)
    (tmp_path / "both" / "test" / "class 1" / "x.bmp").write_bytes(bmp())
    said = write(tmp_path / "both", tmp_path / "out", num_shards=3, processes=1)
    assert said.startswith("CorruptDataError: 5 pictures ")  # all of them, in whatever shard
    for name in ("train/class 0/05.jpg", "train/class 1/17.jpg", "test/class 0/05.jpg", "test/class 1/17.jpg"):
        assert f"{name} cannot be decoded" in said
    assert "x.bmp is a BMP picture" in said
    assert "--no-check-images" in said
    assert "--convert-images" in said
    assert not list((tmp_path / "out").rglob("manifest.json"))


def test_pictures_are_kept_as_they_are_or_converted(photos: Path, tmp_path: Path) -> None:
    (photos / "class 1" / "x.bmp").write_bytes(bmp())
    for number in BAD:
        (photos / f"class {number // 12}" / f"{number:02}.jpg").write_bytes(jpeg(number))
    assert not write(photos, tmp_path / "out", num_shards=2, processes=1, convert_images=True)
    found = [example["image"] for example in data.open(tmp_path / "out")]
    assert found[:COUNT] == [jpeg(number) for number in range(COUNT)]  # what is kept is not touched
    assert np.array_equal(tf.io.decode_png(found[COUNT]), tf.io.decode_bmp(bmp()))
    with refused(ConfigError, name="convert_images", received=True):
        data.write(photos, tmp_path / "more", check_images=False, convert_images=True)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose records are sound, and two of whose pictures are not."""
    folder = tmp_path_factory.mktemp("broken") / "data"
    pictures = [jpeg(number) for number in range(COUNT)]
    for number in BAD:
        pictures[number] = pictures[number][: len(pictures[number]) // 2]
    data.write({"image": pictures, "label": np.arange(COUNT)}, folder, num_shards=2)
    assert data.verify(folder).is_sound
    return folder


def decode(example: dict[str, Any]) -> dict[str, Any]:
    picture = tf.image.resize(tf.io.decode_jpeg(example["image"], channels=3), [4, 4]) / 255.0
    return {"image": picture, "label": example["label"]}


def augment(example: dict[str, Any], seed: Any) -> dict[str, Any]:
    return {**example, "image": tf.image.stateless_random_flip_left_right(example["image"], seed)}


def late(example: dict[str, Any], seed: Any) -> dict[str, Any]:
    return augment(decode(example), seed)


WAYS: dict[str, dict[str, Any]] = {
    "ops": {"decode": decode},
    "numpy": {"decode": decode, "ops": False},
    "kept": {"decode": decode, "augment": augment, "cache": "memory"},
    "in augment": {"augment": late},
}


@pytest.mark.parametrize(("way", "batch"), [*((way, BATCH) for way in WAYS), ("ops", 1)])
def test_a_picture_that_cannot_be_decoded_costs_one_example(
    broken: Path, way: str, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    reading = data.read(broken, global_batch_size=batch, on_corrupt="skip", **WAYS[way])
    whole = data.read(broken, global_batch_size=batch, on_corrupt="skip", decode=lambda row: {"label": row["label"]})
    for _ in range(2):
        found = [(x.numpy(), y.numpy(), weight.numpy()) for x, y, weight in reading]
        order = [y.numpy() for _, y, _ in whole]
        assert len(found) == len(order)
        for (x, y, weight), expected in zip(found, order, strict=True):
            assert x.shape == (batch, 4, 4, 3)
            sound = ~np.isin(expected, BAD)
            assert y[sound].tolist() == expected[sound].tolist()  # positions stay
            assert not weight[~sound].any()
        trained = sorted(int(i) for _, y, weight in found for i in y[weight > 0])
        assert trained == [number for number in range(COUNT) if number not in BAD]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == len(BAD)  # each once
    assert all("Invalid JPEG data" in text and "weight 0" in text for text in warned)


def test_raising_names_example_file_and_byte(broken: Path) -> None:
    examples = data.open(broken)
    shard, offset, _ = examples.locate(np.array([5]))
    for options in WAYS.values():
        with pytest.raises(CorruptDataError) as raised:
            list(data.read(broken, global_batch_size=BATCH, order="none", **options))
        name = examples.manifest.shards[int(shard[0])].file
        assert says(str(raised.value), "example 5 ", f"{name}, byte {int(offset[0])}: ", "Invalid JPEG data")


def test_shares_of_workers_skip_the_same(broken: Path) -> None:
    """Three replicas on two workers: each example that can be decoded counts once, whoever reads it."""
    found: list[int] = []
    steps = set()
    for first, count in ((0, 2), (2, 1)):
        reading = data.read(broken, global_batch_size=BATCH, on_corrupt="skip", decode=decode, seed=3)
        batches = [parts for _, _, parts in reading.share(first, count, 3).take(reading.steps)]
        steps.add(len(batches))
        for parts in batches:
            for rows, (_, y, weight) in parts:
                found += [int(i) for i, k in zip(y[: int(rows)].numpy(), weight[: int(rows)].numpy(), strict=True) if k]
    assert steps == {reading.steps}
    assert sorted(found) == [number for number in range(COUNT) if number not in BAD]


def test_what_is_not_an_examples_fault_is_told_as_it_was(broken: Path) -> None:
    def shapes(example: dict[str, Any]) -> dict[str, Any]:
        return {"x": tf.zeros([2, example["label"] + 1]), "label": example["label"]}

    for skip in ("skip", "raise"):
        with pytest.raises(tf.errors.OpError, match=r"(?i)shape"):
            list(data.read(broken, global_batch_size=BATCH, decode=shapes, on_corrupt=skip))

    def never(example: dict[str, Any]) -> dict[str, Any]:
        return {"x": tf.io.decode_png(b"no picture"), "label": example["label"]}

    with refused(CorruptDataError, name="decode", path=str(broken), mentions=("no example of", "of 24 ")):
        list(data.read(broken, global_batch_size=BATCH, decode=never, on_corrupt="skip"))


VERIFY = """
import json, sys, tfdist
before = tfdist.data.verify(sys.argv[1], decode=True)
done = tfdist.data.repair(sys.argv[1], decode=True)
print(json.dumps([[(place.example, place.problem) for place in before.places], before.cure, done.to_json()]))
"""


def test_verifying_decodes_what_training_will(broken: Path, tmp_path: Path) -> None:
    shutil.copytree(broken, tmp_path / "data")
    run = [sys.executable, "-c", VERIFY, str(tmp_path / "data")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=800, check=True)
    places, cure, repaired = json.loads(done.stdout)
    assert [number for number, _ in places] == list(BAD)
    assert all("'image' cannot be decoded" in problem for _, problem in places)
    assert "--decode" in cure
    assert repaired["kept"] == COUNT - len(BAD)
    assert [place["example"] for place in repaired["lost"]] == list(BAD)
    found = [int(example["label"]) for example in data.open(tmp_path / "data")]
    assert found == [number for number in range(COUNT) if number not in BAD]
    data.write({"x": np.zeros(3)}, tmp_path / "numbers")
    with refused(ConfigError, name="decode", received=True):
        data.verify(tmp_path / "numbers", decode=True)
    with refused(ConfigError, name="contents", received=False):
        data.verify(tmp_path / "data", decode=True, contents=False)
