"""Examples that are appended to a directory: older readers and states keep theirs, whenever an appending ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.corruption import LAYOUTS, Faulty, KilledError, examples_of, snapshot
from tests.refusals import refused
from tfdist import data
from tfdist.cli.main import main
from tfdist.data.format import data_manifest
from tfdist.data.format.data_manifest import Manifest, read_manifest
from tfdist.data.writing import dataset_writer
from tfdist.errors import ConfigError, DataChangedError
from tfdist.storage.directory import LocalStorage, storage

GENERIC = data.Schema({"values": data.Feature("float32", (None,)), "label": data.Feature("int64")})


def rows(layout: str, first: int, end: int) -> Any:
    return examples_of(layout, end)[first:]


def write(place: Any, layout: str, first: int, end: int, **options: Any) -> Manifest:
    known = GENERIC if layout == "generic" and options.get("exists") != "append" else None
    return data.write(rows(layout, first, end), place, **{"num_shards": 2, "schema": known, **options})


def append(place: Any, layout: str, first: int, end: int, **options: Any) -> Manifest:
    return write(place, layout, first, end, exists="append", **options)


def labels(examples: Any) -> list[int]:
    return [int(example["label"]) for example in examples]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_appended_examples_are_behind_the_others(layout: str, tmp_path: Path) -> None:
    first = write(tmp_path, layout, 0, 10)
    before = data.open(tmp_path)
    assert labels(before.each(range(3))) == [0, 1, 2]
    files = snapshot(tmp_path)
    second = append(tmp_path, layout, 10, 16)
    assert (second.examples, second.revision, second.layout) == (16, 2, layout)
    third = append(tmp_path, layout, 16, 17, num_shards=1)
    assert third.shards[:4] == second.shards
    assert [shard.file for shard in third.shards[3:]] == [
        "data-00003.revision-2.tfrecord",
        "data-00004.revision-3.tfrecord",
    ]
    assert {name: snapshot(tmp_path)[name] for name in files if name != "manifest.json"} == {
        name: content for name, content in files.items() if name != "manifest.json"
    }
    assert labels(before) == list(range(10)), "who has opened it goes on"
    assert labels(data.open(tmp_path)) == list(range(17))
    for revision, manifest in ((1, first), (2, second), (3, third)):
        old = data.open(tmp_path, revision=revision)
        assert (old.manifest.digest, labels(old)) == (manifest.digest, list(range(manifest.examples)))
    assert [found.digest for found in third.generations()] == [third.digest, second.digest, first.digest]
    assert data.verify(tmp_path).is_sound
    assert not data.repair(tmp_path).has_changed
    with refused(ConfigError, name="revision", received=4, mentions=["1, 2, 3"]):
        data.open(tmp_path, revision=4)


def test_a_lost_manifest_is_made_of_all_that_was_appended(tmp_path: Path) -> None:
    write(tmp_path, "extent", 0, 10)
    append(tmp_path, "extent", 10, 16)
    (tmp_path / "manifest.json").unlink()
    data.repair(tmp_path, rebuild_manifest=True)
    assert labels(data.open(tmp_path)) == list(range(16))
    write(tmp_path, "extent", 0, 5, exists="overwrite")
    append(tmp_path, "extent", 5, 7)
    assert labels(data.open(tmp_path)) == list(range(7))
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".tfrecord")]) == 4


def test_parts_by_a_hash_stay_as_they_are(tmp_path: Path) -> None:
    names = [f"patient {n}" for n in range(300)]
    data.write({"name": names[:200], "x": np.arange(200)}, tmp_path)
    parts = {"train": 0.8, "test": 0.2}

    def numbers(key: str | None) -> dict[str, list[int]]:
        return {part: data.select(tmp_path, parts=parts, part=part, key=key).all_ids().tolist() for part in parts}

    before = {key: numbers(key) for key in ("name", None)}
    data.write({"name": names[200:], "x": np.arange(200, 300)}, tmp_path, exists="append")
    for key, found in before.items():
        after = numbers(key)
        assert all([n for n in after[part] if n < 200] == found[part] for part in parts)
        assert sorted(after["train"] + after["test"]) == list(range(300))


@pytest.mark.parametrize("layout", ["fixed", "extent"])
def test_an_appending_that_is_ended_at_any_step(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    write(source, layout, 0, 6)

    def act(folder: Path, step: int | None) -> Faulty:
        faulty = Faulty(storage(folder), step)
        with monkeypatch.context() as patch:
            patch.setattr(dataset_writer, "storage", lambda *_, **__: faulty)
            append(folder, layout, 6, 11)
        return faulty

    whole = shutil.copytree(source, tmp_path / "whole")
    steps = act(whole, None).steps
    assert steps > 6
    for step in range(steps):
        folder = shutil.copytree(source, tmp_path / f"step {step}")
        reader = data.open(folder)
        with pytest.raises(KilledError):
            act(folder, step)
        found = labels(data.open(folder))
        assert found in (list(range(6)), list(range(11)))
        assert labels(reader) == list(range(6))
        assert data.verify(folder).is_sound
        if step % 2 and "writing.jsonl" not in snapshot(folder):
            continue  # all is done, or nothing has begun
        if step % 3 == 2 and len(found) == 6:  # others are appended instead
            append(folder, layout, 20, 23, num_shards=1)
            assert labels(data.open(folder)) == [*range(6), 20, 21, 22]
            continue
        if "writing.jsonl" in snapshot(folder) or len(found) == 6:
            append(folder, layout, 6, 11)  # the same command goes on
        assert labels(data.open(folder)) == list(range(11)), "each once"
        assert snapshot(folder) == snapshot(whole)


def test_a_process_that_is_killed_while_it_appends(tmp_path: Path) -> None:
    write(tmp_path, "fixed", 0, 10)
    script = (
        "import os, signal, numpy as np, tfdist\n"
        "def rows():\n"
        "    for n in range(10, 5000):\n"
        "        if n == 4000: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield {'x': np.zeros(3, 'float32'), 'label': np.int64(n)}\n"
        f"tfdist.data.write(rows(), {str(tmp_path)!r}, exists='append', shard_bytes=20_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=120, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "writing.jsonl" in os.listdir(tmp_path)
    assert labels(data.open(tmp_path)) == list(range(10))
    append(tmp_path, "fixed", 10, 13)
    assert labels(data.open(tmp_path)) == list(range(13))
    named = data.open(tmp_path).manifest.files
    assert {name for name in os.listdir(tmp_path) if name.startswith("data-")} == set(named)


def test_a_list_that_is_not_the_one_of_the_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "extent", 0, 4)
    place = storage(tmp_path)
    faulty = Faulty(place, None)

    def remove(name: str) -> None:
        if read_manifest(place).revision > 1:
            raise KilledError  # behind the manifest
        place.remove(name)

    monkeypatch.setattr(faulty, "remove", remove, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(dataset_writer, "storage", lambda *_, **__: faulty)
        with pytest.raises(KilledError):
            append(tmp_path, "extent", 4, 8)
    assert labels(data.open(tmp_path)) == list(range(8))
    with refused(ConfigError, path=tmp_path, mentions=["writing.jsonl"]):
        append(tmp_path, "extent", 8, 12)
    assert labels(data.open(tmp_path)) == list(range(8)), "nothing was lost, and nothing added"
    append(tmp_path, "extent", 4, 8)
    assert labels(data.open(tmp_path)) == list(range(8)), "the same list was there already"
    append(tmp_path, "extent", 8, 12)
    assert labels(data.open(tmp_path)) == list(range(12))


def test_an_empty_directory_takes_its_first_examples(tmp_path: Path) -> None:
    assert append(tmp_path / "new", "fixed", 0, 3).revision == 1
    assert append(tmp_path / "new", "fixed", 3, 5).examples == 5


def test_a_manifest_is_read_whole_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "fixed", 0, 3)

    def size(place: LocalStorage, name: str) -> int:
        monkeypatch.undo()
        found = place.size(name)
        append(tmp_path, "fixed", 3, 5)
        return found

    monkeypatch.setattr(LocalStorage, "size", size)
    assert read_manifest(storage(tmp_path)).examples == 5


def test_a_manifest_that_no_reader_takes_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "fixed", 0, 3)
    monkeypatch.setattr(data_manifest, "LARGEST_BYTES", (tmp_path / "manifest.json").stat().st_size)
    with refused(ConfigError, name="shards", received=4):
        append(tmp_path, "fixed", 3, 5)
    assert len(data.open(tmp_path)) == 3


def test_what_cannot_be_appended(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write(folder, "fixed", 0, 4)
    for examples, options, name in (
        ({"x": np.zeros((2, 4), np.float32), "label": np.arange(2)}, {}, None),
        ({"x": np.zeros((2, 3), np.float32)}, {}, None),
        (rows("fixed", 4, 6), {"label": "x"}, "label"),
        (rows("fixed", 4, 6), {"schema": GENERIC}, "schema"),
    ):
        with pytest.raises(ConfigError) as caught:
            data.write(examples, folder, exists="append", **options)
        assert name is None or caught.value.name == name
    photos = tmp_path / "split"
    for split in ("train", "test"):
        photos.mkdir(exist_ok=True)
        (photos / f"{split}.csv").write_text("x,label\n1,0\n")
    with refused(ConfigError, name="exists", received="append", mentions=["--split"]):
        data.write(photos, folder, exists="append")
    (tmp_path / "others").mkdir()
    shutil.copy(folder / "data-00000.tfrecord", tmp_path / "others" / "train-00000-of-00001")
    with refused(ConfigError, name="exists", mentions=["tfdist data index"]):
        append(tmp_path / "others", "fixed", 0, 3)
    data.index(tmp_path / "others")
    assert append(tmp_path / "others", "fixed", 7, 9).examples == 4
    assert labels(data.open(tmp_path / "others")) == [0, 1, 7, 8]
    assert labels(data.open(tmp_path / "others", revision=1)) == [0, 1]


def test_overwriting_ends_what_was_appended_to(tmp_path: Path) -> None:
    write(tmp_path, "extent", 0, 4)
    reader = data.open(tmp_path)
    append(tmp_path, "extent", 4, 6)
    data.write(rows("extent", 0, 4), tmp_path, exists="overwrite", num_shards=2)
    with pytest.raises(DataChangedError):
        labels(reader)
    with refused(ConfigError, name="revision"):
        data.open(tmp_path, revision=1)


def test_classes_are_matched_by_their_names(tmp_path: Path) -> None:
    from PIL import Image

    for folder, kinds in (("one", ("cat", "dog")), ("two", ("dog",)), ("three", ("eel",))):
        for kind in kinds:
            (tmp_path / folder / kind).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / folder / kind / "1.png")
    how: dict[str, Any] = {"check_images": False}
    data.write(tmp_path / "one", tmp_path / "data", **how)
    data.write(tmp_path / "two", tmp_path / "data", exists="append", **how)
    assert labels(data.open(tmp_path / "data")) == [0, 1, 1]
    with pytest.raises(ConfigError):
        data.write(tmp_path / "three", tmp_path / "data", exists="append", **how)
    assert len(data.open(tmp_path / "data")) == 3


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n")
    for count in (2, 4):
        done = CliRunner().invoke(main, ["data", "write", str(tmp_path / "a.csv"), str(tmp_path / "out"), "--append"])
        assert done.exit_code == 0, done.output
        assert f"has {count} examples" in done.stdout
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["revision"] == 2


def test_streams_are_appended(tmp_path: Path) -> None:
    def stream(first: int) -> Iterator[dict[str, Any]]:
        return ({"x": n} for n in range(first, first + 100))

    data.write(stream(0), tmp_path, shard_bytes=1000)
    found = data.write(stream(100), tmp_path, shard_bytes=1000, exists="append")
    assert [int(one["x"]) for one in data.open(tmp_path)] == list(range(200))
    assert len({shard.file for shard in found.shards}) == len(found.shards) > 4
