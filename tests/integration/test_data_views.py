"""Lists of directories, parts and mixtures: read by every path as single directories are, and resumed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist import data, native
from tfdist.cluster.shares import Shares
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError, DataChangedError

pytestmark = pytest.mark.quick

PATHS = ("ops", "numpy", "mixed", "remote")


def columns(count: int, first: int, text: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"id": np.arange(first, first + count), "kind": np.arange(count) % 3}
    return {**found, "text": [f"text {first + i}" * (i % 3) for i in range(count)]} if text else found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Two directories for each path: 41 and 23 examples."""
    root = tmp_path_factory.mktemp("views")
    found = {}
    for path in PATHS:
        base = "memory://views" if path == "remote" else str(root / path)
        lists = {"list": [[1] * (i % 3) for i in range(23)]} if path == "mixed" else {}
        data.write(columns(41, 0), f"{base}/a", label="id", num_shards=2, exists="overwrite")
        data.write({**columns(23, 1000), **lists}, f"{base}/b", label="id", exists="overwrite")
        found[path] = [f"{base}/a", f"{base}/b"]
    return found


def ids_of(epoch: Any) -> list[int]:
    return [int(i) for _, y, weight in epoch for i, kept in zip(y, weight, strict=True) if kept]


def both(folders: dict[str, list[str]], path: str, **options: Any) -> data.View:
    if path == "ops" and native.records() is None:
        pytest.skip("the ops cannot be compiled here")
    a, b = folders[path]
    features = ["id", "kind", "text"] if path == "mixed" else ()
    return data.mix({"a": a, "b": b}, features=features, **options)


@pytest.mark.parametrize("path", PATHS)
def test_a_mixture_reads_the_right_values_on_every_path(folders: dict[str, list[str]], path: str) -> None:
    mixture = both(folders, path, stop="all", weights={"a": 1, "b": 1})
    reading = data.read(mixture, global_batch_size=7, seed=3, ops=path == "ops")
    seen = []
    for x, y, weight in reading:
        kinds, texts = x["kind"].numpy().tolist(), x["text"].numpy().tolist()
        for number, kind, text, kept in zip(y.numpy().tolist(), kinds, texts, weight.numpy(), strict=True):
            place = number % 1000
            assert (kind, text) == (place % 3, f"text {number}".encode() * (place % 3))
            seen += [number] * int(kept)
    assert set(seen) == {*range(41), *range(1000, 1023)}
    assert abs(sum(number < 1000 for number in seen) - len(seen) / 2) <= 4


def test_shares_of_workers_are_the_global_batches_and_a_state_resumes(folders: dict[str, list[str]]) -> None:
    mixture = both(folders, "numpy", stop="never", examples=50, weights=[(0, {"a": 3, "b": 1}), (60, {"a": 0, "b": 1})])
    whole = data.read(mixture, global_batch_size=6, seed=3)
    epochs = [ids_of(whole), ids_of(whole)]
    assert all(number >= 1000 for number in epochs[1][10:])
    assert len({number for number in epochs[0] if number < 1000}) == sum(number < 1000 for number in epochs[0])
    reading = data.read(mixture, global_batch_size=6, seed=3)
    parts = [iter(reading.share(first, 1, Shares.equal(3))) for first in range(3)]
    for step in range(4):
        batch = []
        for part in parts:
            _, _, ((count, (_, y, _)),) = next(part)
            batch += y.numpy()[: int(count)].tolist()
        assert batch == epochs[0][6 * step : 6 * step + 6]
    state = json.loads(json.dumps(reading.state(batches=4)))
    resumed = data.read(mixture, global_batch_size=5, seed=3, state=state)
    assert ids_of(resumed) + ids_of(resumed) == epochs[0][24:] + epochs[1]
    other = both(folders, "numpy", stop="never", examples=50)
    with refused(ConfigError, name="state"):
        data.read(other, global_batch_size=6, seed=3, state=state)


def test_directories_are_read_as_a_list_and_by_wildcard(folders: dict[str, list[str]]) -> None:
    for source in (folders["numpy"], str(Path(folders["numpy"][0]).parent / "[ab]")):
        examples = data.open(source)
        assert [examples[place]["id"] for place in (0, 40, 41, -1)] == [0, 40, 1000, 1022]
        found = ids_of(data.read(source, global_batch_size=10, seed=1))
        assert sorted(found) == [*range(41), *range(1000, 1023)]
    assert sorted(ids_of(data.read(folders["numpy"], label="id", order="block", global_batch_size=7))) == sorted(found)


def test_conditions_choose_and_keep_their_numbers(folders: dict[str, list[str]]) -> None:
    chosen = data.select(folders["numpy"], where={"kind": {0, 2}, "text": lambda texts: texts != b"text 2text 2"})
    expected = [int(row["id"]) for row in data.open(folders["numpy"]) if row["kind"] != 1 and row["id"] != 2]
    assert [int(row["id"]) for row in chosen] == expected
    assert sorted(ids_of(data.read(chosen, global_batch_size=8, seed=1))) == expected
    halves = [data.select(chosen, numbers=part) for part in (slice(0, None, 2), np.arange(1, len(chosen), 2))]
    assert sorted(int(row["id"]) for half in halves for row in half) == expected
    balanced = data.read(chosen, global_batch_size=8, label="kind", order="balanced", inputs="id")
    kinds = [int(y) for _, y, w in balanced for y, w in zip(y, w, strict=True) if w]
    assert set(kinds) == {0, 2}
    assert abs(kinds.count(0) - kinds.count(2)) <= 1


@pytest.mark.parametrize("key", [None, "id", "text"])
def test_parts_are_disjoint_and_stay_when_examples_are_added(tmp_path: Path, key: str | None) -> None:
    parts = {"train": 0.7, "test": 0.2, "rest": 0.1}
    rows = columns(600, 0)
    rows["text"] = [f"patient {i // 3}" for i in range(600)]
    for name, count in (("few", 400), ("all", 600)):
        data.write({feature: values[:count] for feature, values in rows.items()}, tmp_path / name)
    found = {}
    for name in ("few", "all"):
        views = {part: data.select(tmp_path / name, parts=parts, part=part, key=key) for part in parts}
        found[name] = {part: {int(row["id"]) for row in view} for part, view in views.items()}
        assert sum(map(len, found[name].values())) == {"few": 400, "all": 600}[name]
    for part in parts:
        assert found["few"][part] == {number for number in found["all"][part] if number < 400}
        assert abs(len(found["all"][part]) - 600 * parts[part]) < 75
    if key == "text":
        patients = [{number // 3 for number in numbers} for numbers in found["all"].values()]
        assert sum(map(len, patients)) == len(set().union(*patients)), "a patient is in one part"


def test_damage_and_changes_are_told_with_their_directory(tmp_path: Path) -> None:
    for name in ("a", "b"):
        data.write(columns(20, 0), tmp_path / name, label="id")
    path = next((tmp_path / "b").glob("*.tfrecord"))
    blob = bytearray(path.read_bytes())
    blob[-8] ^= 1
    path.write_bytes(blob)
    whole = [tmp_path / "a", tmp_path / "b"]
    with refused(CorruptDataError, mentions=("example 19", str(tmp_path / "b"))):
        list(data.read(whole, global_batch_size=8, label="id"))
    found = ids_of(data.read(whole, global_batch_size=8, label="id", on_corrupt="skip"))
    assert sorted(found) == sorted([*range(20), *range(19)])
    data.write(columns(20, 0), tmp_path / "c", label="id")
    reading = data.read([tmp_path / "a", tmp_path / "c"], global_batch_size=8, label="id")
    data.write(columns(25, 0), tmp_path / "a", label="id", exists="overwrite")
    with refused(DataChangedError):
        list(reading)


def test_poisson_samples_only_what_was_selected(folders: dict[str, list[str]]) -> None:
    chosen = data.select(folders["numpy"][0], where={"kind": {1}})
    batches = data.poisson(data.read(chosen, global_batch_size=5, tail="keep"), seed=3)
    assert batches.examples == len(chosen)
    seen = [int(number) for _, y in batches for number in y]
    assert seen
    assert {number % 3 for number in seen} == {1}


def test_what_cannot_be_mixed_or_chosen_is_refused(folders: dict[str, list[str]], tmp_path: Path) -> None:
    a, b = folders["numpy"]
    data.write(columns(5, 0, text=False), tmp_path / "c")
    data.write({"id": np.arange(3.0) + 0.5, "kind": np.arange(3), "text": ["a", "b", "c"]}, tmp_path / "d")
    both = {"a": a, "b": b}
    for wrong, name in (
        ({"weights": {"a": 1}}, "weights"),
        ({"weights": {"a": 0, "b": 0}}, "weights"),
        ({"weights": [(5, {"a": 1, "b": 1})]}, "weights"),
        ({"weights": [(0, {"a": 1, "b": 1}), (9, {"a": 1, "b": 2})]}, "stop"),
        ({"stop": "last"}, "stop"),
        ({"features": ["nothing"]}, "features"),
    ):
        with refused(ConfigError, name=name):
            data.mix(both, **wrong)
    with refused(ConfigTypeError, name="sources"):
        data.mix([a, b])  # type: ignore[arg-type]
    with refused(ConfigError, name="features", mentions=("'text'",)):
        data.mix({"a": a, "c": tmp_path / "c"})
    with refused(ConfigError, name="id"):
        data.mix({"a": a, "d": tmp_path / "d"})
    with refused(ConfigError, name="order"):
        data.read(data.mix(both), global_batch_size=4, order="balanced")
    for wrong in (
        {"numbers": [0, 64]},
        {"numbers": [1, 1]},
        {"where": {"nothing": {1}}},
        {"where": {"kind": {7}}},
        {"where": {"kind": lambda kinds: kinds}},
        {"parts": {"a": 0.9, "b": 0.2}, "part": "a"},
        {"parts": {"a": 0.9}, "part": "b"},
        {"part": "a"},
    ):
        with refused(ConfigError):
            data.select([a, b], **wrong)
    with refused(ConfigTypeError, name="numbers"):
        data.select(a, numbers=[0.5])
    with refused(ConfigError, name="directory"):
        data.open([])
    for twice in ([a, f"{a}/"], [b, f"{a[:-1]}*"], [f"{a}/data-00000.tfrecord"] * 2):
        with refused(ConfigError, name="directory", mentions=("data-00000.tfrecord",)):
            data.open(twice)
