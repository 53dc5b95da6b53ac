"""Files that other readers take for whole, or read in part without a word: right values here, or an error."""

import io
import json
import logging
import struct
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from tests.refusals import refused
from tfdist import data
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError, TfdistError


def tar(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))
    return path


def test_members_of_a_tar_that_belong_to_no_example_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = [("__meta__/x.cls", b"1"), ("__a.cls", b"2"), ("./b.CLS", b" 3\n"), ("notes", b"4"), ("d/.hidden", b"5")]
    with caplog.at_level(logging.WARNING, "tfdist"):
        examples = data.open(tar(tmp_path / "a.tar", *members))
    assert [(row["__key__"], int(row["cls"])) for row in examples] == [(b"__a", 2), (b"b", 3)]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "2 members" in line
    assert "notes, d/.hidden" in line


@pytest.mark.parametrize("value", [b"5.0", b"", b"9223372036854775808"])
def test_a_label_that_is_no_int64_is_a_corrupt_example(tmp_path: Path, value: bytes) -> None:
    examples = data.open(tar(tmp_path / "a.tar", ("a.cls", b"-9223372036854775808"), ("b.cls", value)))
    assert int(examples[0]["cls"]) == -(1 << 63)
    with refused(CorruptDataError, mentions=("example 1",)):
        examples[1]


@pytest.mark.parametrize(
    "other", [np.array([1.5, 2.5, 3.5]), np.array([1, 2, 3], np.int32), np.array([[1, 2]]), None], ids=str
)
def test_a_list_of_another_dtype_is_a_corrupt_example(tmp_path: Path, other: Any) -> None:
    arrays = []
    for array in (np.array([1, 2]), np.array([1, 2, 3]), other):
        np.save(buffer := io.BytesIO(), array, allow_pickle=True)
        arrays.append(buffer.getvalue())
    examples = data.open(
        tar(tmp_path / "a.tar", *((f"{key}.npy", content) for key, content in zip("abc", arrays, strict=True)))
    )
    assert [examples[number]["npy"].tolist() for number in (0, 1)] == [[1, 2], [1, 2, 3]]
    with refused(CorruptDataError, mentions=("example 2",)):
        examples[2]


def mds(folder: Path, encoding: str, values: list[bytes]) -> Path:
    about: dict[str, Any] = {"column_encodings": [encoding], "column_names": ["x"], "column_sizes": [None]}
    about |= {"compression": None, "format": "mds", "samples": len(values), "version": 2}
    bodies = [struct.pack("<I", len(value)) + value for value in values]
    offsets = 4 + 4 * (len(bodies) + 1) + np.cumsum([0, *map(len, bodies)])
    folder.mkdir()
    content = struct.pack("<I", len(bodies)) + offsets.astype("<u4").tobytes() + b"".join(bodies)
    (folder / "shard.00000.mds").write_bytes(content)
    shards = [{**about, "raw_data": {"basename": "shard.00000.mds"}}]
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def test_numbers_that_mds_has_as_text_are_exact_or_corrupt(tmp_path: Path) -> None:
    whole = data.open(mds(tmp_path / "whole", "str_int", [b"9007199254740993", b"-1"]))
    assert whole.schema["x"].dtype == "int64"
    assert whole.numbers("x").tolist() == [9007199254740993, -1]
    large = data.open(mds(tmp_path / "large", "str_int", [b"1", b"9223372036854775808"]))
    with refused(CorruptDataError, mentions=("example 1",)):
        large.numbers("x")


def records(path: Path, count: int) -> Path:
    writer = ArrayRecordWriter(str(path), "")
    for number in range(count):
        writer.write(b"%d" % number)
    writer.close()
    return path


def test_an_array_record_file_without_records_adds_none(tmp_path: Path) -> None:
    for number, count in enumerate((3, 0, 2)):
        records(tmp_path / f"a.array_record-{number}", count)
    examples = data.open(tmp_path, records="raw")
    assert [row["record"] for row in examples] == [b"0", b"1", b"2", b"0", b"1"]
    assert examples[3:5][1]["record"] == b"1"
    for number in (5, -6):
        with pytest.raises(IndexError):
            examples[number]


@pytest.mark.parametrize("content", [b"", b"\0" * 70_000])
def test_an_array_record_file_that_was_not_written_is_refused(tmp_path: Path, content: bytes) -> None:
    records(tmp_path / "a.array_record-0", 3)
    (tmp_path / "a.array_record-1").write_bytes(content)
    for how in ("raw", "examples"):
        with pytest.raises(TfdistError) as caught:
            data.open(tmp_path, records=how)
        assert "a.array_record-1" in str(caught.value)


def test_files_of_several_splits_are_not_taken_for_one(tmp_path: Path) -> None:
    for name in ("info", "tars"):
        (tmp_path / name).mkdir()
    for split, count in (("train", 3), ("odd", 2)):
        records(tmp_path / f"info/set-{split}.array_record-00000-of-00001", count)
        tar(tmp_path / f"tars/{'val' if split == 'odd' else split}-0.tar", *((f"{n}.cls", b"1") for n in range(count)))
    (tmp_path / "info/dataset_info.json").write_text("{}")
    for name, ending in (("info", "*"), ("tars", "*.tar")):
        with refused(ConfigError, path=str(tmp_path / name), mentions=(f"{tmp_path / name}/*train*",)):
            data.open(tmp_path / name, records="raw" if name == "info" else "examples")
        for part, count in (("*train*", 3), (ending, 5)):
            records_of = "raw" if name == "info" else "examples"
            assert len(data.open(f"{tmp_path / name}/{part}", records=records_of)) == count
    (tmp_path / "info/set-odd.array_record-00000-of-00001").unlink()
    assert len(data.open(tmp_path / "info", records="raw")) == 3


def test_parts_without_a_key_follow_from_the_content_of_any_file(tmp_path: Path) -> None:
    parts = {"train": 0.6, "test": 0.4}
    lines = [json.dumps({"id": number, "text": "x" * (number % 7)}) for number in range(300)]
    found = {}
    for count in (200, 300):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("\n".join(lines[:count]))
        views = {part: data.select(path, parts=parts, part=part) for part in parts}
        found[count] = {part: {int(row["id"]) for row in view} for part, view in views.items()}
        assert set().union(*found[count].values()) == set(range(count))
        assert sum(map(len, found[count].values())) == count
    for part in parts:
        assert found[200][part] == {number for number in found[300][part] if number < 200}
    assert 120 < len(found[300]["train"]) < 240
    twice = tmp_path / "twice.jsonl"
    twice.write_text("\n".join([*lines[:100], *lines[:100]]))
    numbers = [int(row["id"]) for row in data.select(twice, parts=parts, part="train")]
    assert sorted(numbers) == sorted(2 * list(set(numbers)))


def test_large_numbers_are_chosen_exactly(tmp_path: Path) -> None:
    ids = np.arange(2**63 - 1000, 2**63 + 1000, dtype=np.uint64)
    data.write({"id": ids}, tmp_path)
    few, many = {2**63 - 3, 2**63 + 3}, [2**62, *range(2**63 - 1000, 2**63 - 500)]
    for wanted, count in ((few, 2), (many, 500), (np.array(many)[:, np.newaxis], 500)):
        assert len(data.select(tmp_path, where={"id": wanted})) == count


def test_sources_are_chosen_by_their_names(tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        data.write({"id": np.arange(10) + 100 * number, "kind": np.arange(10) % 2}, tmp_path / name)
    paths = {name: str(tmp_path / name) for name in "abc"}
    odd = data.select(paths["b"], where={"kind": {1}})
    weights = {**dict.fromkeys("abc", 1), "again": 0}
    mixture = data.mix({**paths, "b": odd, "again": paths["a"]}, stop="never", weights=weights)
    for source, names in ((mixture, list("abc")), (list(paths.values()), list(paths.values()))):
        a, b, c = names
        assert [int(row["id"]) for row in data.select(source, sources=a)] == list(range(10))
        chosen = [int(row["id"]) for row in data.select(source, sources=[c, b], where={"kind": {1}})]
        assert chosen == [*range(101, 110, 2), *range(201, 210, 2)]
        with refused(ConfigError, name="sources", received="d"):
            data.select(source, sources=["d"])
    assert len(data.select(mixture, sources=["a", "again"])) == 20
    assert len(data.select(data.mix({"a": paths["a"]}), sources="a")) == 10
    assert len(data.select(data.select(list(paths.values()), where={"kind": {0}}), sources=paths["c"])) == 5
    with refused(ConfigTypeError, name="where"):
        data.select(paths["a"], where=lambda values: values > 0)  # type: ignore[arg-type]
    with refused(ConfigError, name="source"):
        data.select(mixture, where={"kind": {1}})
    with refused(ConfigError):
        data.select(mixture, sources=[])


def hdf5(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def virtual(path: Path, count: int, *sources: h5py.VirtualSource) -> Path:
    layout = h5py.VirtualLayout((count,), "int64")
    at = 0
    for source in sources:
        layout[at : at + source.shape[0]] = source
        at += source.shape[0]
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
    return path


def values_of(path: Path) -> list[int]:
    return [int(value) for block in open_source(path).blocks(0, None) for value in block["x"]]


def test_a_file_behind_two_virtual_datasets_must_be_there(tmp_path: Path) -> None:
    last = hdf5(tmp_path / "last.h5", x=np.arange(1, 4))
    virtual(tmp_path / "middle.h5", 3, h5py.VirtualSource("last.h5", "x", (3,)))
    first = virtual(tmp_path / "first.h5", 3, h5py.VirtualSource("middle.h5", "x", (3,)))
    assert values_of(first) == [1, 2, 3]
    last.unlink()
    with refused(ConfigError, name="x", received="last.h5"):
        open_source(first)


def test_a_shorter_file_behind_a_virtual_dataset_is_damage(tmp_path: Path) -> None:
    hdf5(tmp_path / "part.h5", x=np.arange(2))
    whole = virtual(tmp_path / "whole.h5", 4, h5py.VirtualSource("part.h5", "x", (4,)))
    with refused(CorruptDataError, path=str(whole)):
        values_of(whole)


def test_external_files_must_have_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where HDF5 looks for them
    path, raw = tmp_path / "a.h5", tmp_path / "a.raw"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4,), "int64", external=[("a.raw", 8, 32)])
        file["x"][:] = [1, 2, 3, 4]
    assert values_of(path) == [1, 2, 3, 4]
    raw.write_bytes(raw.read_bytes()[:24])
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [1, 2, 0, 0], "HDF5 itself fills in zeros"
    with refused(ConfigError, name="x", received="a.raw"):
        open_source(path)
    raw.unlink()
    with refused(ConfigError, name="x", received="a.raw"):
        open_source(path)
