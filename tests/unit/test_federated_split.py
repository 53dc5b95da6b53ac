"""A directory divided among clients: every example once, with its bytes, and a folder that is whole or not there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tfdist
from tests.corruption import EXAMPLES, LAYOUTS, KilledError, flip, labels_of, parts, snapshot, write
from tests.refusals import refused
from tfdist.cli.main import main
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.federated import split_by, split_directory, split_dirichlet, split_iid
from tfdist.federated.clients import directory_split


def clients_of(folder: Path) -> dict[str, list[int]]:
    return {one.name: labels_of(tfdist.data.open(one)) for one in sorted(folder.iterdir())}


@pytest.mark.parametrize("read_bytes", [1, 200, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_example_goes_to_one_client_as_it_is(
    tmp_path: Path, layout: str, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split depends neither on the bytes of one read, nor on the number of a client's shards."""
    monkeypatch.setattr(directory_split, "_READ_BYTES", read_bytes)
    monkeypatch.setattr(directory_split, "SHARD_BYTES", 150)
    write(tmp_path / "all", layout)
    seen = list[tuple[int, int]]()
    told = split_directory(
        tmp_path / "all",
        tmp_path / "clients",
        clients=3,
        seed=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    found = clients_of(tmp_path / "clients")
    assert list(found.values()) == [sorted(one.tolist()) for (one,) in split_iid((np.arange(EXAMPLES),), 3, seed=1)]
    assert told == {name: len(labels) for name, labels in found.items()}
    everything = tfdist.data.open(tmp_path / "all")
    for name, labels in found.items():
        assert tfdist.data.verify(tmp_path / "clients" / name).is_sound
        for example, label in zip(tfdist.data.open(tmp_path / "clients" / name), labels, strict=True):
            assert str(example) == str(everything[label])


def test_the_seed_decides(tmp_path: Path) -> None:
    write(tmp_path / "all", "extent")
    for place, seed in (("a", 1), ("b", 1), ("c", 2)):
        split_directory(tmp_path / "all", tmp_path / place, clients=2, seed=seed)
    first, same, other = (snapshot(tmp_path / place / "client-0") for place in "abc")
    assert first == same != other


def test_labels_are_distributed_as_in_memory(tmp_path: Path) -> None:
    labels = np.arange(60) % 4
    tfdist.data.write({"kind": labels, "label": np.arange(60)}, tmp_path / "all")
    split_directory(tmp_path / "all", tmp_path / "clients", clients=5, alpha=0.3, label="kind", seed=3)
    expected = split_dirichlet((np.arange(60),), labels, 5, alpha=0.3, seed=3)
    assert list(clients_of(tmp_path / "clients").values()) == [sorted(one.tolist()) for (one,) in expected]


def test_examples_without_a_value_are_lost_by_no_split() -> None:
    """NaN equals nothing, not even itself."""
    rows, values = np.arange(6), np.array([1.0, np.nan, 2.0, np.nan, 1.0, np.nan])
    found = split_by((rows,), values)
    assert {name: one.tolist() for name, (one,) in found.items()} == {"1.0": [0, 4], "2.0": [2], "nan": [1, 3, 5]}
    drawn = split_dirichlet((rows,), values, 2, alpha=1.0)
    assert sorted(np.concatenate([one for (one,) in drawn])) == rows.tolist()


@pytest.mark.parametrize(
    ("schema", "values", "names"),
    [
        (Feature("string"), ["b", "a/b", "..", "b", "50%"], {"%2E.": [2], "50%25": [4], "a%2Fb": [1], "b": [0, 3]}),
        (Feature("int64"), [7, -1, 7, 7, 7], {"-1": [1], "7": [0, 2, 3, 4]}),
        (Feature("int64", names=("rome", "bonn")), [1, 0, 1, 1, 1], {"bonn": [0, 2, 3, 4], "rome": [1]}),
        (Feature("bool"), [True, False, True, True, True], {"False": [1], "True": [0, 2, 3, 4]}),
    ],
)
@pytest.mark.parametrize("others", [{}, {"values": Feature("float32", (None,))}])
def test_each_value_of_a_feature_is_a_client(
    tmp_path: Path, schema: Feature, values: list[Any], names: dict[str, list[int]], others: dict[str, Feature]
) -> None:
    examples = [
        {"who": value, "label": number, **{name: [0.5] * number for name in others}}
        for number, value in enumerate(values)
    ]
    features = Schema({"who": schema, "label": Feature("int64"), **others})
    tfdist.data.write(examples, tmp_path / "all", schema=features)
    split_directory(tmp_path / "all", tmp_path / "clients", by="who")
    assert clients_of(tmp_path / "clients") == names


def test_a_split_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "all", "fixed")
    for step in range(4):
        steps = iter(range(step))

        def progress(_done: int, _total: int, steps: Any = steps) -> None:
            if next(steps, None) is None:
                raise KilledError

        with pytest.raises(KilledError):
            split_directory(tmp_path / "all", tmp_path / "clients", clients=4, progress=progress)
        assert [one.name for one in tmp_path.iterdir()] == ["all"]


def test_what_a_killed_split_left_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "all", "fixed")
    left = tmp_path / ".clients.0123456789abcdef.tmp" / "client-0"
    left.mkdir(parents=True)
    (left / "data-00000.tfrecord").write_bytes(b"half")
    split_directory(tmp_path / "all", tmp_path / "clients", clients=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["all", "clients"]


def test_a_corrupt_record_is_named_and_not_copied(tmp_path: Path) -> None:
    write(tmp_path / "all", "extent")
    name, offset = parts(tfdist.data.open(tmp_path / "all"), 7)["middle"]
    flip(tmp_path / "all" / name, offset)
    with refused(CorruptDataError, path=name):
        split_directory(tmp_path / "all", tmp_path / "clients", clients=2)
    assert [one.name for one in tmp_path.iterdir()] == ["all"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "by"),
        ({"by": "who", "clients": 2}, "by"),
        ({"by": "who", "alpha": 0.3}, "by"),
        ({"by": "nobody"}, "nobody"),
        ({"by": "x"}, "x"),
        ({"by": "who"}, "by"),
        ({"by": "bytes"}, "bytes"),
        ({"clients": 0}, "clients"),
        ({"clients": 5}, "clients"),
        ({"clients": 2, "label": "label"}, "label"),
        ({"clients": 2, "alpha": 0.0}, "alpha"),
        ({"clients": 2, "alpha": 0.3}, "label"),
        ({"clients": 2, "alpha": 0.3, "label": "x"}, "x"),
        ({"clients": 2, "seed": -1}, "seed"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any], name: str) -> None:
    examples = {"who": ["a", "", "b", "c"], "bytes": [b"\xff", b"a", b"b", b"c"], "x": np.zeros((4, 2))}
    tfdist.data.write(examples, tmp_path / "all")
    with refused(ConfigError, name=name):
        split_directory(tmp_path / "all", tmp_path / "clients", **options)
    assert not (tmp_path / "clients").exists()


@pytest.mark.parametrize("into", ["all", "s3://bucket/clients"])
def test_a_folder_that_cannot_appear_is_refused(tmp_path: Path, into: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("all", "fixed")
    before = snapshot(tmp_path / "all")
    with refused(ConfigError, name="into"):
        split_directory("all", into, clients=2)
    assert snapshot(tmp_path / "all") == before


def test_the_command_says_who_has_how_much(tmp_path: Path) -> None:
    write(tmp_path / "all", "fixed")
    done = CliRunner().invoke(main, ["data", "split", str(tmp_path / "all"), str(tmp_path / "clients"), "--iid", "4"])
    assert done.exit_code == 0, done.output
    assert all(fact in done.output for fact in ("4 clients", "10 examples", "2 to 3"))
    assert len(clients_of(tmp_path / "clients")) == 4


@pytest.mark.parametrize(
    "arguments", [[], ["--by", "x", "--iid", "2"], ["--iid", "2", "--label", "x"], ["--dirichlet", "1"]]
)
def test_commands_that_make_no_sense_exit_with_2(tmp_path: Path, arguments: list[str]) -> None:
    write(tmp_path / "all", "fixed")
    done = CliRunner().invoke(main, ["data", "split", str(tmp_path / "all"), str(tmp_path / "clients"), *arguments])
    assert done.exit_code == 2, done.output
    assert not (tmp_path / "clients").exists()


def test_files_without_records_are_refused_and_not_called_corrupt(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    with refused(ConfigError, name="directory", mentions=["rows.jsonl", "tfdist.data.write"]):
        split_directory(tmp_path / "rows.jsonl", tmp_path / "clients", clients=2)
