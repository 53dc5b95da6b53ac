"""Fetchers of files of all kinds: the columns of no examples, and what replaces those that are corrupt."""

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfdist
from tests.unit.test_data_sequences import sequence
from tfdist.data.examples.computed_examples import ComputedFetcher
from tfdist.data.reading.view import fetcher_of, view_of

NOTHING = np.zeros(0, np.int64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))


def lines(path: Path) -> Path:
    rows = ({"x": number / 2, "text": "a" * number, "list": [1] * number} for number in range(4))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def packed(folder: Path) -> Any:
    tfdist.data.write({"tokens": [[1, 2, 3], [4], [5, 6]]}, folder)
    return tfdist.data.pack(folder, "tokens", 2)


def tar(path: Path) -> Path:
    array = io.BytesIO()
    np.save(array, np.ones((2, 3), np.float32))
    with tarfile.open(path, "w") as file:
        for name, content in (("a.cls", b"7"), ("a.npy", array.getvalue())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def joined(folder: Path) -> list[Path]:
    """Two directories of one schema, of which one is in other files."""
    rows = [{"x": 0.5, "text": "a"}, {"x": 2.5, "text": "b"}]
    (folder.with_suffix(".jsonl")).write_text("".join(json.dumps(row) + "\n" for row in rows))
    tfdist.data.write(rows, folder, schema=tfdist.data.open(folder.with_suffix(".jsonl")).schema)
    return [folder, folder.with_suffix(".jsonl")]


@pytest.mark.parametrize("make", [lines, packed, tar, joined])
def test_no_examples_have_the_columns_of_one(make: Any, tmp_path: Path) -> None:
    fetch = fetcher_of(
        view_of(make(tmp_path / "größe.jsonl" if make is lines else tmp_path / "größe.tar")).examples,
        verify="first",
        skip=False,
    )
    one, none = fetch(np.zeros(1, np.int64))[0], fetch(NOTHING)[0]
    assert one.keys() == none.keys()
    for name, column in none.items():
        assert (column.dtype, column.shape) == (one[name].dtype, (0, *one[name].shape[1:]))


def test_no_records_are_no_payloads(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(sequence({"id": [1]}, {"steps": [[1], [2]]}))
    fetch = fetcher_of(view_of(tmp_path, records="sequences").examples, verify="first", skip=False)
    assert all(len(column) == 0 for column in fetch(NOTHING)[0].values())
    assert len(fetch.payloads(NOTHING)[0]) == 0


def test_what_replaces_corrupt_examples_is_looked_for_once(tmp_path: Path) -> None:
    good, bad = json.dumps({"x": 1}) + "\n", json.dumps({"y": 1}) + "\n"
    path = tmp_path / "a.jsonl"
    path.write_text(good * 300 + bad * 2000 + good * 300)  # beyond the examples that tell the schema
    examples = view_of(path).examples
    fetch = fetcher_of(examples, verify="first", skip=True)
    assert isinstance(fetch, ComputedFetcher)
    read: list[int] = []
    one_by_one = fetch._is_sound
    fetch._is_sound = lambda number, names: read.append(number) or one_by_one(number, names)  # type: ignore[method-assign,func-returns-value]
    for begin in (400, 410, 420):
        columns, weight = fetch(np.arange(begin, begin + 5))
        assert not weight.any()
        assert columns["x"].tolist() == [1] * 5
    assert len(read) < 2000 + 3 * 5 + 3


@pytest.mark.parametrize("layout", ["fixed", "extent"])
def test_a_directory_of_no_examples_is_read(layout: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"x": np.zeros(3, np.float32), "label": np.arange(3)}
    manifest = tfdist.data.write(columns | ({"text": ["a", "b", "c"]} if layout == "extent" else {}), tmp_path)
    assert manifest.layout == layout
    (tmp_path / "manifest.json").write_bytes(dataclasses.replace(manifest, shards=()).to_bytes())
    examples = tfdist.data.open(tmp_path)
    assert not list(examples)
    assert examples.integers("label").tolist() == []
    assert examples.lengths("text" if layout == "extent" else "label").tolist() == []
    assert tfdist.data.info(tmp_path).examples == 0
