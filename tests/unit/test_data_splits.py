"""Several splits of one data set: one list of classes, one schema, and no two of them mixed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import tfdist
from tests.refusals import absent, refused
from tfdist.cli.main import main
from tfdist.data.format import example, record_framing
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.format.splits import is_word, ordered, trains
from tfdist.data.sources import open_source, splits_of
from tfdist.errors import ConfigError, CorruptDataError, MissingFileError

PNG = bytes.fromhex(  # one grey pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c6368000000820081dd436af40000000049454e44ae426082"
)
CLASSES = {"train": ["cat", "dog", "owl"], "validation": ["dog"], "test": ["cat", "owl"]}


def pictures(folder: Path, classes: dict[str, list[str]] = CLASSES) -> Path:
    for split, names in classes.items():
        for name in names:
            (folder / split / name).mkdir(parents=True)
            (folder / split / name / "a.png").write_bytes(PNG)
    return folder


def write(examples: Any, directory: str | Path, **options: Any) -> Any:
    return tfdist.data.write(examples, directory, **{"check_images": False, **options})


def labels(directory: Path) -> list[str]:
    """The classes of a directory's examples, by the names that it has for their numbers."""
    examples = tfdist.data.open(directory)
    return [examples.schema["label"].names[int(one["label"])] for one in examples]


def values(source: Any, name: str) -> list[Any]:
    return [value for block in source.blocks(0, None) for value in np.asarray(block[name]).tolist()]


def test_splits_are_named_in_small_letters_or_large_ones() -> None:
    assert ordered(["more", "Test", "VAL", "Train"]) == ["Train", "VAL", "Test", "more"]
    assert [name for name in ("Train", "TEST", "trains") if is_word(name)] == ["Train", "TEST"]
    assert [name for name in ("Train", "TEST", "more") if trains(name)] == ["Train"]


def test_a_class_has_one_number_in_all_splits(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    written = write(photos, tmp_path / "data")
    assert list(written) == ["train", "validation", "test"]
    assert {name: manifest.examples for name, manifest in written.items()} == {"train": 3, "validation": 1, "test": 2}
    for split, names in CLASSES.items():
        directory = tmp_path / "data" / split
        assert labels(directory) == names
        assert tfdist.data.open(directory).schema["label"].names == ("cat", "dog", "owl")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [".lock", "test", "train", "validation"]


def test_the_schema_of_train_matches_names(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    schema = write(photos / "train", tmp_path / "train").schema
    write(photos / "test", tmp_path / "test", schema=schema)
    assert labels(tmp_path / "test") == ["cat", "owl"]
    assert [int(one["label"]) for one in tfdist.data.open(tmp_path / "test")] == [0, 2]


def test_one_split_has_the_classes_of_train_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos = pictures(tmp_path / "photos")
    write(photos, tmp_path / "chosen", split="test")
    assert [int(one["label"]) for one in tfdist.data.open(tmp_path / "chosen")] == [0, 2]
    with refused(ConfigError, name="split", received="test", path=photos / "test" / "cat" / "a.png"):
        write(photos / "test" / "cat" / "a.png", tmp_path / "other", split="test")
    assert not caplog.messages
    write(photos / "test", tmp_path / "alone")
    assert not absent(caplog.text, f"{photos / 'test'} ", " cat, owl, ", " cat, dog, owl: ")


def test_a_class_that_train_has_not_is_an_error(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", {**CLASSES, "test": ["cat", "zebra"]})
    with refused(ConfigError, name="label", received="zebra", path=photos / "test", mentions=["(cat, dog,"]):
        write(photos, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_directories_that_number_their_classes_in_other_ways(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    for split in CLASSES:
        write(photos / split, tmp_path / split)
    assert [int(one["label"]) for one in tfdist.data.open(tmp_path / "test")] == [0, 1]
    write([tmp_path / "train", tmp_path / "test"], tmp_path / "both", processes=1, num_shards=2)
    assert labels(tmp_path / "both") == ["cat", "dog", "owl", "cat", "owl"]
    with refused(ConfigError, name="label", received="dog", mentions=["2 known"]):
        write([tmp_path / "test", tmp_path / "train"], tmp_path / "other")
    assert [int(v) for v in values(open_source([photos / "test", photos / "train"]), "label")] == [0, 2, 0, 1, 2]


def test_what_is_interrupted_goes_on_and_what_is_there_stays(tmp_path: Path) -> None:
    photos, data = pictures(tmp_path / "photos"), tmp_path / "data"

    def stop(examples: int, total: int | None, _: int) -> None:
        assert total == 6
        if examples > 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write(photos, data, progress=stop)
    before = (data / "train" / "data-00000.tfrecord").stat().st_mtime_ns
    write(photos / "validation", data / "validation", exists="overwrite")
    with refused(ConfigError, name="schema", path=data / "validation"):
        write(photos, data)
    for path in (data / "validation").iterdir():
        path.unlink()
    assert list(write(photos, data)) == ["train", "validation", "test"]
    assert (data / "train" / "data-00000.tfrecord").stat().st_mtime_ns == before
    with refused(ConfigError, name="exists", received="raise", path=data / "train"):
        write(photos, data)
    assert write(photos, data, exists="keep")["test"].examples == 2
    (photos / "test" / "owl" / "b.png").write_bytes(PNG)
    assert write(photos, data, exists="overwrite")["test"].examples == 3
    with refused(ConfigError, name="num_shards", received=2, mentions=["1 example"]):
        write(photos, tmp_path / "other", num_shards=2)
    assert not (tmp_path / "other").exists()


def test_kept_splits_and_new_ones_have_one_schema(tmp_path: Path) -> None:
    photos, data = pictures(tmp_path / "photos"), tmp_path / "data"
    write(photos / "train", data / "train")
    assert write(photos, data, exists="keep")["validation"].examples == 1
    assert labels(data / "test") == ["cat", "owl"]
    write(photos / "test", tmp_path / "again" / "train")
    with refused(ConfigError, name="schema", path=tmp_path / "again" / "train"):
        write(photos, tmp_path / "again", exists="keep")


def test_damaged_splits_are_overwritten(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", CLASSES)
    write(photos, tmp_path / "data")
    manifest = tmp_path / "data" / "train" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(CorruptDataError):
        write(photos, tmp_path / "data", exists="keep")
    assert set(write(photos, tmp_path / "data", exists="overwrite")) == set(CLASSES)


def test_splits_in_a_remote_store() -> None:
    store = fsspec.filesystem("memory")
    try:
        for split, names in CLASSES.items():
            for name in names:
                store.pipe(f"/bucket/photos/{split}/{name}/a.png", PNG)
        written = write("memory://bucket/photos", "memory://bucket/data/")
        assert written["test"].schema["label"].names == ("cat", "dog", "owl")
        assert [int(one["label"]) for one in tfdist.data.open("memory://bucket/data/test")] == [0, 2]
    finally:
        store.store.clear()
        store.pseudo_dirs[:] = [""]


def test_what_stands_beside_splits_is_not_passed_over(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    (photos / "README.md").write_text("text")
    assert splits_of(photos) == ["train", "validation", "test"]
    (photos / "labels.csv").write_text("x\n1\n")
    with refused(ConfigError, name="source", received="train, validation, test, csv", path=photos):
        write(photos, tmp_path / "data")
    (photos / "labels.csv").unlink()
    (photos / "more").mkdir()
    with refused(ConfigError, name="source", received="train, validation, test, more", path=photos):
        write(photos, tmp_path / "data")


def test_the_directory_of_all_splits_names_them(tmp_path: Path) -> None:
    write(pictures(tmp_path / "photos"), tmp_path / "data")
    where = tmp_path / "data"
    with refused(ConfigError, path=where, mentions=["train, validation, test", str(where / "train")]):
        tfdist.data.open(tmp_path / "data")


def test_several_writers_of_splits_write_once(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    with ThreadPoolExecutor(3) as pool:
        keep = [pool.submit(write, photos, tmp_path / "data", exists="keep") for _ in range(3)]
        found = [future.result(timeout=200) for future in keep]
    assert [{name: manifest.digest for name, manifest in one.items()} for one in found] == [
        {name: manifest.digest for name, manifest in found[0].items()}
    ] * 3


def test_splits_without_train_need_a_schema(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", {"validation": ["dog"], "test": ["owl"]})
    with refused(ConfigError, name="split", received="validation, test", path=photos, mentions=["--schema"]):
        write([photos], tmp_path / "data")
    schema = Schema({"image": Feature("string"), "label": Feature("int64", names=("owl", "dog"))})
    write(photos, tmp_path / "data", schema=schema)
    assert labels(tmp_path / "data" / "validation") == ["dog"]


def record(x: int) -> bytes:
    feature = Feature("int64")
    return record_framing.frame(example.joined([example.entry("x", feature, example.content_of(feature, x))]))


def tfds(folder: Path) -> Path:
    """A folder as TensorFlow Datasets leaves it."""
    folder.mkdir(parents=True)
    for x, name in enumerate(["test.tfrecord-00000-of-00001", "extra.tfrecord-00000-of-00001"], 10):
        (folder / f"digits-{name}").write_bytes(record(x))
    for shard in range(2):
        (folder / f"digits-train.tfrecord-{shard:05d}-of-00002").write_bytes(record(shard))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "features.json").write_text("{}")
    return folder


def test_files_of_tensorflow_datasets_are_not_mixed(tmp_path: Path) -> None:
    folder = tfds(tmp_path / "1.0.0")
    assert splits_of(folder) == ["train", "test", "extra"]
    with refused(ConfigError, name="split", path=folder, mentions=["train, test, extra", "split='train'"]):
        open_source(folder)
    assert values(open_source(folder, split="test"), "x") == [10]
    written = write(folder, tmp_path / "data")
    assert {name: manifest.examples for name, manifest in written.items()} == {"train": 2, "test": 1, "extra": 1}
    assert write(folder, tmp_path / "train", split="train").examples == 2
    with refused(ConfigError, name="split", received="dev", path=folder, mentions=["train, test, extra"]):
        write(folder, tmp_path / "dev", split="dev")
    with refused(ConfigError, name="split", path=folder, mentions=["(train, test, extra)", "split='train'"]):
        tfdist.data.index(folder)
    assert tfdist.data.index(folder, split="train").examples == 2
    assert [int(one["x"]) for one in tfdist.data.open(folder)] == [0, 1]


def test_a_shard_whose_link_leads_nowhere_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(record(1))
    (tmp_path / "b.tfrecord").symlink_to(tmp_path / "cache" / "b")
    with refused(ConfigError, path=tmp_path / "b.tfrecord", mentions=["cache/b"]):
        tfdist.data.index(tmp_path)
    with refused(MissingFileError, path=tmp_path / "b.tfrecord"):
        open_source(tmp_path)


@pytest.mark.parametrize("names", [("train.csv", "test.csv"), ("a-train-1.csv", "a_val.csv"), ("Train.csv", "dev.csv")])
def test_words_in_the_names_of_files(names: tuple[str, str], tmp_path: Path) -> None:
    for x, name in enumerate(names):
        (tmp_path / name).write_text(f"x\n{x}\n")
    (tmp_path / "README.md").write_text("")
    assert len(splits_of(tmp_path)) == 2
    with refused(ConfigError, name="split", received="None", path=tmp_path):
        open_source(tmp_path)
    assert values(open_source([tmp_path / name for name in names]), "x") == [0, 1]  # as it was asked for
    assert values(open_source(f"{tmp_path}/*.csv"), "x") in ([0, 1], [1, 0])
    (tmp_path / "more.csv").write_text("x\n3\n")
    with refused(ConfigError, name="split", received="more.csv", path=tmp_path):
        open_source(tmp_path)


def test_files_of_one_split_are_one_set(tmp_path: Path) -> None:
    for x in range(2):
        (tmp_path / f"train-{x:05d}-of-00002.csv").write_text(f"x\n{x}\n")
    assert splits_of(tmp_path) == []
    assert values(open_source(tmp_path), "x") == [0, 1]
    with refused(ConfigError, name="split", received="train", path=tmp_path, mentions=["no splits"]):
        open_source(tmp_path, split="train")


def test_classes_may_be_called_like_splits(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(PNG)
    assert splits_of(tmp_path) == []
    assert open_source(tmp_path).schema["label"].names == ("test", "train")


def test_folders_of_tables_have_the_schema_of_train(tmp_path: Path) -> None:
    for split, table in {"train": {"x": [1.5, 2.5]}, "test": {"x": [3, (1 << 60) + 1]}}.items():
        (tmp_path / "in" / split).mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table(table), tmp_path / "in" / split / "a.parquet")
    where = tmp_path / "in" / "test" / "a.parquet"
    with refused(ConfigError, name="x", path=where, mentions=["Example 1", "float64", "schema"]):
        write(tmp_path / "in", tmp_path / "out")
    pyarrow.parquet.write_table(pa.table({"x": [3, 1 << 60]}), tmp_path / "in" / "test" / "a.parquet")
    write(tmp_path / "in", tmp_path / "out", exists="overwrite")
    assert [float(one["x"]) for one in tfdist.data.open(tmp_path / "out" / "test")] == [3, 1 << 60]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def test_the_command_writes_all_splits_and_shows_their_schema(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos")
    done = run("write", "--no-check-images", f"{photos}/", f"{tmp_path}/data/")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split(" in ")[0] for line in lines[:3]] == [
        f"{tmp_path}/data/train has 3 examples",
        f"{tmp_path}/data/validation has 1 example",
        f"{tmp_path}/data/test has 2 examples",
    ]
    assert any("label" in line and "int64" in line and "3 classes: cat, dog, owl" in line for line in lines[3:])
    schema = json.loads((tmp_path / "data" / "train" / "manifest.json").read_text())["schema"]
    assert schema["label"]["names"] == ["cat", "dog", "owl"]
    manifest = tmp_path / "data/train/manifest.json"
    alone = run("write", "--no-check-images", photos / "test", tmp_path / "alone", "--schema", manifest)
    assert alone.exit_code == 0, alone.output
    assert labels(tmp_path / "alone") == ["cat", "owl"]
    chosen = run("write", "--no-check-images", photos, tmp_path / "chosen", "--split", "test")
    assert "chosen has 2 examples" in chosen.stdout
    refused = run("write", photos, tmp_path / "chosen", "--split", "tset")
    assert refused.exit_code == 2
    folder = tfds(tmp_path / "tfds")
    assert run("index", folder).exit_code == 2
    assert "has 1 example in" in run("index", folder, "--split", "test").stdout
