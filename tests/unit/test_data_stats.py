"""`tfdist.data.stats`: the same numbers as NumPy, however examples are divided; and what is equal, shared, unlike."""

import json
import logging
import math
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tests.corruption import LAYOUTS, flip, write
from tests.refusals import refused
from tfdist import data
from tfdist.cli.main import main
from tfdist.data.looking import data_statistics, feature_tallies
from tfdist.data.looking.hash_samples import HashSample, hashes, number_hashes, shared
from tfdist.data.looking.moments import Moments, merged, moments_of
from tfdist.errors import ConfigError

FOREIGN = Path(__file__).parents[1] / "goldens" / "foreign"
CLOSE = 1e-9

REAL = ("digits", "breast_cancer")
MADE: dict[str, NDArray[Any]] = {
    "one": np.array([3.5]),
    "all alike": np.full(1000, 0.1),
    "float16": np.linspace(-3, 5, 999).astype(np.float16),
    "far from zero": 1e9 + np.random.default_rng(1).normal(0, 1e-3, 5000),
    "times in ns": 1_700_000_000_000_000_000 + np.random.default_rng(2).integers(0, 1000, 5000),
    "uint64": np.array([2**64 - 1, 2**64 - 3, 2**64 - 7], np.uint64),
    "both ends of int64": np.array([-(2**63), 2**63 - 1, 5, 7]),
    "bool": np.arange(7) % 3 == 0,
    "uint8": np.arange(256, dtype=np.uint8),
}


def real(name: str) -> Any:
    """Return a data set. Processes that only collect the tests do not import scikit-learn."""
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")()


@pytest.mark.parametrize("name", [*REAL, *MADE])
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_moments_are_those_of_all_numbers(name: str, pieces: int) -> None:
    values = MADE[name] if name in MADE else real(name).data
    found = Moments()
    for piece in np.array_split(values.reshape(-1), pieces):
        found = merged(found, moments_of(piece))
    exact = [Fraction(value) for value in values.reshape(-1).tolist()]
    mean = sum(exact) / len(exact)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in exact) / len(exact))
    assert (found.count, found.low, found.high) == (values.size, values.min(), values.max())
    rounding = 1e-15 * float(max(map(abs, exact)))  # of a sum whose terms cancel each other
    assert found.mean == pytest.approx(float(mean), rel=CLOSE, abs=rounding)
    assert found.deviation == pytest.approx(deviation, rel=CLOSE, abs=1e-12)


def test_moments_of_real_data_are_those_of_numpy() -> None:
    for values in (real(name).data for name in REAL):
        for column in values.T:
            found = merged(moments_of(column[:100]), moments_of(column[100:]))
            assert found.mean == pytest.approx(column.mean(), rel=CLOSE)
            assert found.deviation == pytest.approx(column.std(), rel=CLOSE)


def test_what_is_no_number_is_counted_and_left_out() -> None:
    found = merged(moments_of(np.array([np.nan, 1.0, np.inf, 3.0])), moments_of(np.array([-np.inf, np.nan, np.nan])))
    assert (found.count, found.nan, found.infinite) == (2, 3, 2)
    assert (found.low, found.high, found.mean, found.deviation) == (1.0, 3.0, 2.0, 1.0)
    nothing = moments_of(np.array([np.nan]))
    assert (nothing.count, nothing.mean, nothing.deviation) == (0, None, None)
    assert moments_of(np.zeros(0)) == Moments()


def test_different_values_are_counted_up_to_a_number_and_then_estimated() -> None:
    numbers = np.random.default_rng(3).integers(0, 40_000, 200_000)
    true, errors = len(np.unique(numbers)), []
    for most in (1 << 16, 1 << 12, 1 << 10):
        sample = HashSample(most)
        for begin in range(0, len(numbers), 3333):
            piece = numbers[begin : begin + 3333]
            sample.add(number_hashes(piece), np.arange(begin, begin + len(piece)))
        found = sample.different
        assert len(sample.kept()) <= most
        assert (found.error == 0) == (most > true)
        errors.append(abs(found.number / true - 1))
        assert errors[-1] <= 4 * found.error
        again = int((sample.kept()["count"] - 1).sum()) << sample.depth
        assert again == pytest.approx(len(numbers) - true, rel=0.01 + 4 * found.error)
    assert errors[0] == 0


def test_values_that_two_samples_share() -> None:
    for most in (1 << 16, 1 << 11):
        one, other = HashSample(most), HashSample(1 << 12)
        one.add(hashes(str(n).encode() for n in range(20_000)), np.arange(20_000))
        other.add(hashes(str(n).encode() for n in range(15_000, 22_000)), np.arange(7_000))
        ours, theirs, depth = shared(one, other)
        assert (ours["first"] == theirs["first"] + 15_000).all()
        assert len(ours) << depth == pytest.approx(5000, rel=0.25)


def test_equal_numbers_of_unlike_dtypes_have_one_hash_and_others_another() -> None:
    for values in ([0, 1, 255], [0.5, -0.0, np.nan]):
        kinds = ("uint8", "int16", "uint64") if isinstance(values[-1], int) else ("float32", "float64")
        found = {number_hashes(np.array(values).astype(kind)).tobytes() for kind in kinds}
        assert len(found) == 1
    assert number_hashes(np.array([0.0]))[0].tolist() == number_hashes(np.array([-0.0]))[0].tolist()
    assert len(np.unique(number_hashes(np.arange(10_000)), axis=0)) == 10_000


def cancer() -> dict[str, Any]:
    found = real("breast_cancer")
    return {"area": found.data[:, 3], "all": found.data.astype(np.float32), "label": found.target}


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_statistics_of_real_data(shards: int, tmp_path: Path) -> None:
    examples = cancer()
    data.write(examples, tmp_path, num_shards=shards)
    found = data.stats(tmp_path)
    for name in ("area", "all"):
        one, values = found.features[name], np.asarray(examples[name], np.float64)
        assert one.mean == pytest.approx(values.mean(), rel=CLOSE)
        assert one.deviation == pytest.approx(values.std(), rel=CLOSE)
        assert (one.min, one.max, one.values, one.count) == (values.min(), values.max(), values.size, 569)
        assert one.distinct == len(np.unique(values.reshape(569, -1), axis=0))
    assert found.labels == {"0": 212, "1": 357}
    assert sum(shard.examples for shard in found.shards) == 569
    assert (found.corrupt, found.duplicates.examples, found.overlap) == ((), 0, None)
    bounds = np.linspace(0, 569, shards + 1).round().astype(int)
    for number, shard in enumerate(found.shards):
        here = slice(*bounds[number : number + 2])
        assert shard.skew == pytest.approx(abs(examples["label"][here].mean() - examples["label"].mean()), abs=1e-12)
        shifts = {
            name: abs(np.float64(values[here]).mean() - np.float64(values).mean()) / np.float64(values).std()
            for name, values in examples.items()
            if name != "label"
        }
        assert shard.shift == pytest.approx(max(shifts.values()), abs=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout(layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write(folder, layout, count=50, num_shards=3)
    found, read = data.stats(folder), list(data.open(folder))
    assert (found.features["label"].mean, found.features["label"].distinct) == (24.5, 50)
    name = next(name for name in found.features if name != "label")
    lengths = [np.size(row[name]) if layout != "extent" else len(row[name]) for row in read]
    if layout == "fixed":
        assert found.features[name].lengths is None
    else:
        assert found.features[name].lengths == (min(lengths), max(lengths), pytest.approx(np.mean(lengths)))
    if layout != "extent":
        values = np.concatenate([row[name] for row in read]).astype(np.float64)
        assert found.features[name].deviation == pytest.approx(values.std(), rel=CLOSE)
    twice = data.stats([folder, shutil.copytree(folder, tmp_path / "other")])
    assert (twice.duplicates.examples, twice.duplicates.pairs[0]) == (50, (0, 50))
    assert twice.features["label"].mean == 24.5


def test_files_of_other_libraries_have_the_statistics_of_a_copy(tmp_path: Path) -> None:
    for name in ("web.tar", "mds", "saved"):
        examples = data.open(FOREIGN / name)
        data.write(examples, tmp_path / name, schema=examples.schema)
        theirs, ours = data.stats(FOREIGN / name), data.stats(tmp_path / name, against=FOREIGN / name)
        assert theirs.features == ours.features
        assert theirs.duplicates == ours.duplicates
        assert ours.overlap is not None
        assert ours.overlap.examples == ours.examples


def test_examples_that_are_equal(tmp_path: Path) -> None:
    x = np.array([[1, 2], [3, 4], [1, 2], [5, 6], [1, 2], [3, 4]])
    data.write({"x": x, "label": np.array([0, 1, 0, 0, 1, 1])}, tmp_path / "a", num_shards=3)
    found = data.stats(tmp_path / "a").duplicates
    assert (found.features, found.examples, found.unlike_labels, found.pairs) == (("x",), 3, 1, ((0, 4), (1, 5)))
    assert data.stats(tmp_path / "a", content=["x", "label"]).duplicates.examples == 2
    other = {"x": x[[3, 1]].astype(np.uint8), "label": np.array([0, 0])}
    data.write(other, tmp_path / "b")
    both = data.stats(tmp_path / "a", against=tmp_path / "b").overlap
    assert both is not None
    assert (both.examples, both.unlike_labels, both.pairs) == (2, 1, ((0, 3), (1, 1)))
    rows = [{"x": row, "label": 7} for row in ([1, 2], [1, 2, 3], [300, 4])]
    schema = data.Schema({"x": data.Feature("int64", (None,)), "label": data.Feature("int64")})
    data.write(rows, tmp_path / "lists", schema=schema)
    for first, second in (("a", "lists"), ("lists", "a"), ("b", "lists")):
        both = data.stats(tmp_path / first, against=tmp_path / second).overlap
        assert both is not None
        assert both.examples == {"a": 1, "lists": 3, "b": 0}[first], "300 is no uint8, and is not made one"


def test_parts_of_a_split_share_nothing(tmp_path: Path) -> None:
    data.write({"x": np.arange(200) % 150}, tmp_path)
    parts = {"train": 0.7, "test": 0.3}
    train, test = (data.select(tmp_path, parts=parts, part=name) for name in parts)
    found = data.stats(train, against=test)
    assert found.overlap is not None
    assert (found.examples, found.overlap.examples) == (len(train), 0)
    halves = [data.select(tmp_path, numbers=numbers) for numbers in (range(100), range(100, 200))]
    both = data.stats(halves[0], against=halves[1]).overlap
    assert both is not None
    assert (both.examples, both.pairs[0]) == (50, (150, 0))


def test_nulls_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,name\n10,a\n,b\n30,\n,\n")
    data.write(tmp_path / "a.csv", tmp_path / "data", nulls={"age": -999, "name": ""}, null_masks=["age"])
    age, name = (data.stats(tmp_path / "data").features[key] for key in ("age", "name"))
    assert (age.count, age.null, age.mean, age.min, age.distinct) == (2, 2, 20.0, 10, 2)
    assert (name.count, name.null, name.empty, name.distinct) == (2, 0, 2, 3)


def test_corrupt_examples_are_left_out_and_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for layout in LAYOUTS:
        write(tmp_path / layout, layout)
        flip(tmp_path / layout / "data-00001.tfrecord", 14)
        with caplog.at_level(logging.ERROR):
            found = data.stats(tmp_path / layout)
        assert (found.corrupt, found.examples) == ((5,), 10)
        assert found.features["label"].mean == pytest.approx(np.delete(np.arange(10), 5).mean())
        assert found.features["label"].count == 9


def test_labels_of_every_kind(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "text": (["a", "b", "a"], {"a": 2, "b": 1}),
        "lists": ([[0, 1], [1], []], {"cat": 1, "dog": 2}),
        "zeros and ones": (np.array([[1, 0, 1], [0, 0, 1], [0, 0, 0]]), {"0": 1, "2": 2}),
        "float": (np.array([0.5, 1.5, 2.5]), None),
        "one name twice": ([0, 2, 0], {"0": 2, "2": 1}),
    }
    schema = {
        "lists": data.Feature("int64", (None,), names=("cat", "dog")),
        "one name twice": data.Feature("int64", names=("crane", "dog", "crane")),
    }
    for name, (values, expected) in columns.items():
        rows = [{"label": value, "x": n} for n, value in enumerate(values)]
        known = data.Schema({"label": schema[name], "x": data.Feature("int64")}) if name in schema else None
        data.write(rows, tmp_path / name, schema=known)
        assert data.stats(tmp_path / name).labels == expected, name


def test_very_many_values_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_tallies, "MOST_DISTINCT", 256)
    monkeypatch.setattr(feature_tallies, "MOST_LABELS", 100)
    monkeypatch.setattr(data_statistics, "MOST_CONTENTS", 512)
    numbers = np.arange(8000)
    data.write({"x": numbers % 5000, "label": numbers}, tmp_path)
    found = data.stats(tmp_path, against=tmp_path)
    one = found.features["x"]
    assert one.distinct == pytest.approx(5000, rel=4 * one.distinct_error)
    assert (one.mean, found.labels, found.shards[0].skew) == (np.mean(numbers % 5000), None, None)
    assert found.duplicates.error > 0
    assert found.duplicates.examples == pytest.approx(3000, rel=0.3)
    assert found.overlap is not None
    assert found.overlap.examples == pytest.approx(8000, rel=0.3)


def test_sorted_labels_show_in_shards(tmp_path: Path) -> None:
    data.write({"x": np.zeros(40), "label": np.repeat([0, 1, 2, 3], 10)}, tmp_path, num_shards=4)
    assert [shard.skew for shard in data.stats(tmp_path).shards] == [0.75] * 4


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    write(tmp_path / "a", "fixed")
    write(tmp_path / "b", "extent")
    with refused(ConfigError, name="content", received="x", mentions=["--content"]):
        data.stats(tmp_path / "a", against=tmp_path / "b")
    with refused(ConfigError, name="content", received="y"):
        data.stats(tmp_path / "a", content=["y"])
    with refused(ConfigError, name="label", received="klasse"):
        data.stats(tmp_path / "a", label="klasse")


def test_one_example(tmp_path: Path) -> None:
    data.write({"x": np.array([2.5]), "text": ["ä"]}, tmp_path)
    found = data.stats(tmp_path)
    assert (found.features["x"].mean, found.features["x"].deviation, found.label) == (2.5, 0.0, None)
    assert found.features["text"].lengths == (2, 2, 2.0)


def test_the_command(tmp_path: Path) -> None:
    texts = [f"$x_{n}$ [bold]" for n in range(30)]
    examples = {"x": np.arange(30.0), "text": texts, "label": np.arange(30) % 3}
    data.write(examples, tmp_path / "a", num_shards=2)
    data.write({name: values[:4] for name, values in examples.items()}, tmp_path / "b")
    arguments = ["data", "stats", str(tmp_path / "a"), "--against", str(tmp_path / "b")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    for part in ("30 examples", "14.5", "3 classes: 0 10", "data-00001.tfrecord", "0 there is 0 here"):
        assert part in done.stdout
    for name, begin in (("a.png", b"\x89PNG"), ("a.html", b"<!doctype html>")):
        done = CliRunner().invoke(main, [*arguments, "--json", "--out", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["overlap"]["examples"] == 4
        assert (tmp_path / name).read_bytes().startswith(begin)
    assert CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "a.zebra")]).exit_code == 2


def test_samples_are_of_random_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_statistics, "_SAMPLED", 50)
    data.write({"x": np.arange(1000), "image": np.zeros((1000, 5, 5))}, tmp_path, num_shards=4)
    found = data.stats(tmp_path).samples
    assert len(np.unique(found["x"])) == 50
    assert max(Counter(found["x"] // 250).values()) < 25, "they come from everywhere"
    assert 50 * 8 <= len(found["image"]) <= 50 * 16
