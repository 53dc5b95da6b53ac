"""Lists of unlike lengths: ragged, padded, in buckets and packed; and elements of any structure."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import refused
from tfdist import data
from tfdist.cluster.shares import Shares
from tfdist.errors import ConfigError, ConfigTypeError

pytestmark = pytest.mark.quick

COUNT = 53
LENGTHS = np.arange(COUNT) * 7 % 11
TOKENS = [np.arange(100 * i, 100 * i + n, dtype="int32") for i, n in enumerate(LENGTHS)]
Features = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("shapes") / "data"
    ids = np.arange(COUNT)
    data.write({"x": ids[:, None].astype("float32"), "tokens": TOKENS, "id": ids, "side": ids % 2}, where, num_shards=2)
    return where


def boxed(example: Features) -> Features:
    corners = tf.reshape(tf.repeat(tf.cast(example["tokens"], tf.float32), 4), [-1, 4])
    return {"boxes": corners, "tokens": example["tokens"], "id": example["id"]}


def test_arrays_of_an_unknown_first_dimension_are_ragged_and_padded(folder: Path) -> None:
    ragged = data.read(folder, global_batch_size=8, decode=boxed)
    assert ragged.element_spec["boxes"] == tf.RaggedTensorSpec([None, None, 4], tf.float32, 1, tf.int64)
    for batch in ragged:
        for number, boxes in zip(batch["id"].numpy(), batch["boxes"], strict=True):
            assert boxes.numpy().tolist() == [[float(token)] * 4 for token in TOKENS[number]]
    padded = data.read(folder, global_batch_size=8, decode=boxed, pad={"boxes": (12, -1), "tokens": [4, 12]})
    assert padded.element_spec["boxes"].shape.as_list() == [None, 12, 4]
    for batch in padded:
        longest = max(LENGTHS[batch["id"].numpy()])
        assert batch["tokens"].shape[1] == (4 if longest <= 4 else 12)
        for number, boxes, tokens in zip(batch["id"].numpy(), batch["boxes"], batch["tokens"], strict=True):
            length = LENGTHS[number]
            assert (boxes.numpy()[length:] == -1).all()
            assert tokens.numpy().tolist() == [*TOKENS[number].tolist(), *[0] * (len(tokens) - length)]
    with refused(ConfigError, name="pad", mentions=("'tokens'",)):
        list(data.read(folder, global_batch_size=COUNT, pad={"tokens": 3}))
    for wrong in ({"x": 3}, {"none": 3}, {"tokens": 0}, {"tokens": (12, 2**70)}):
        with refused(ConfigError):
            data.read(folder, global_batch_size=8, decode=boxed, pad=wrong)
    with refused(ConfigTypeError, name="pad"):
        data.read(folder, global_batch_size=8, pad=3)  # type: ignore[arg-type]


def test_several_labels_and_structures_reach_fit(folder: Path) -> None:
    _, y, _ = next(iter(data.read(folder, global_batch_size=8, label=["id", "side"], inputs="x")))
    assert sorted(y) == ["id", "side"]
    assert (y["side"].numpy() == y["id"].numpy() % 2).all()

    def paired(example: Features) -> Any:
        heavy = tf.cast(example["id"] > 3, tf.float32)
        return {"x": example["x"]}, {"a": example["x"], "b": 2 * example["x"]}, heavy

    train = data.read(folder, global_batch_size=8, decode=paired, tail="pad", seed=1)
    assert all(weight.shape == (8,) for _, _, weight in train)
    found = [(float(x["x"][row, 0]), float(w[row])) for x, _, w in train for row in range(8)]
    assert sum(weight for _, weight in found) == COUNT - 4
    inputs = keras.Input((1,), name="x")
    model = keras.Model({"x": inputs}, {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(1)(inputs)})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    assert np.isfinite(model.fit(train, verbose=0, shuffle=False).history["loss"][0])
    augmented = data.read(folder, global_batch_size=8, augment=lambda e, seed: (e["x"], e["id"]))
    assert [spec.shape.as_list() for spec in augmented.element_spec] == [[None, 1], [None]]
    for wrong, name in (({"label": "id"}, "label"), ({"inputs": ["x"]}, "inputs")):
        with refused(ConfigError, name=name):
            data.read(folder, global_batch_size=8, decode=paired, **wrong)
    with refused(ConfigError, name="tail"):
        data.read(folder, global_batch_size=8, decode=lambda example: {**example}, tail="pad")


def test_buckets_have_each_example_once_and_resume_with_other_batches(folder: Path) -> None:
    def read(**options: Any) -> data.Reading:
        how = {"bucket_by": "tokens", "inputs": ["id", "tokens"], "seed": 3, **options}
        return data.read(folder, **{"global_batch_size": 6, **how})

    seen = [int(number) for batch in read() for number in batch["id"]]
    assert sorted(seen) == list(range(COUNT))
    spread = [np.ptp(LENGTHS[seen[at : at + 6]]) for at in range(0, 48, 6)]
    assert max(spread) <= 2
    state = read().state(batches=3)
    sought = read(global_batch_size=5)
    sought.seek(state)
    for rest in (read(global_batch_size=5, state=state), sought):
        assert [int(number) for batch in rest for number in batch["id"]] == seen[18:]
    part = read(state=state).share(1, 1, Shares.equal(2))
    numbers = [batch["id"].numpy()[: int(count)].tolist() for _, _, ((count, batch),) in part]
    assert numbers[0] == seen[21:24]
    for wrong in ({"order": "none"}, {"bucket_by": "x"}, {"bucket_by": "nothing"}):
        with refused(ConfigError, name="bucket_by"):
            read(**wrong)
    by_number = read(bucket_by="id")
    first = next(iter(by_number))["id"].numpy()
    assert np.ptp(first) == 5


@pytest.mark.parametrize("whole", [False, True])
def test_packed_rows_have_each_token_once(folder: Path, whole: bool) -> None:
    rows = data.pack(folder, "tokens", 8, whole=whole)
    found: dict[int, list[int]] = {}
    for row in rows:
        tokens, documents, positions = row["tokens"], row["document"], row["position"]
        used = documents > 0
        assert used.sum() == np.flatnonzero(used).size == (used.argmin() or 8), "room is at the end"
        assert (np.diff(documents[used]) >= 0).all()
        for token, position in zip(tokens[used].tolist(), positions[used].tolist(), strict=True):
            assert token % 100 == position
            found.setdefault(token // 100, []).append(position)
        if whole:
            for number in set((tokens[used] // 100).tolist()):
                assert (tokens[used] // 100 == number).sum() in (LENGTHS[number], 8, LENGTHS[number] - 8)
    assert {number: sorted(places) for number, places in found.items()} == {
        number: list(range(length)) for number, length in enumerate(LENGTHS.tolist()) if length
    }
    room = len(rows) * 8 - int(LENGTHS.sum())
    assert room < 8 if not whole else room < 16
    reading = data.read(rows, global_batch_size=5, seed=2)
    batches = [batch["tokens"].numpy().tolist() for batch in reading]
    assert sorted(row for batch in batches for row in batch) == sorted(row["tokens"].tolist() for row in rows)
    state = data.read(rows, global_batch_size=5, seed=2).state(batches=2)
    resumed = data.read(data.pack(folder, "tokens", 8, whole=whole), global_batch_size=5, seed=2, state=state)
    assert [batch["tokens"].numpy().tolist() for batch in resumed] == batches[2:]
    other = data.pack(folder, "tokens", 8, whole=whole, seed=1)
    with refused(ConfigError, name="state"):
        data.read(other, global_batch_size=5, seed=2, state=state)


def test_packed_sources_are_mixed_and_what_cannot_be_packed_is_refused(folder: Path) -> None:
    rows = data.pack(folder, "tokens", 8)
    some = data.select(rows, numbers=range(5))
    mixture = data.mix({"all": rows, "some": some}, stop="all", weights={"all": 1, "some": 1})
    batches = [batch["tokens"].numpy() for batch in data.read(mixture, global_batch_size=4)]
    expected = {tuple(row["tokens"].tolist()) for row in rows}
    assert {tuple(row) for batch in batches for row in batch.tolist()} == expected
    for name in ("id", "nothing"):
        with refused(ConfigError, name="feature", received=name):
            data.pack(folder, name, 8)
    with refused(ConfigError, name="source"):
        data.pack(mixture, "tokens", 8)
    with refused(ConfigError, name="fill", received=2**70):
        data.pack(folder, "tokens", 8, fill=2**70)
    with refused(ConfigError, name="feature"):
        data.pack(data.select(folder, where={"id": {0, 11}}), "tokens", 8)
