"""Reading: the same examples through every layout, path and share; each once per epoch; from any state on."""

import errno
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import refused
from tfdist import data, native
from tfdist.cluster.shares import Shares
from tfdist.data.order.batch_positions import BatchChunks
from tfdist.data.reading.example_cache import DecodedCache
from tfdist.errors import ConfigError, ConfigTypeError, StorageError, TfdistError
from tfdist.training.global_batches import CountedDataset
from tfdist.training.replica import batch_rows

pytestmark = pytest.mark.quick

COUNT = 103  # a prime
IDS = np.arange(COUNT)
FLOATS = np.random.default_rng(0).random((COUNT, 3)).astype("float32")
TEXTS = [f"größe {place}".encode() * (place % 4) for place in range(COUNT)]
LAYOUTS = ("fixed", "extent", "generic")
PATHS = ("numpy", "ops", "remote")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A directory per layout, and a copy of each in fsspec's memory."""
    root = tmp_path_factory.mktemp("zwei größen")
    lists = [list(range(place % 5)) for place in range(COUNT)]
    columns: dict[str, dict[str, Any]] = {
        "fixed": {"x": FLOATS, "label": IDS},
        "extent": {"x": FLOATS, "text": TEXTS, "label": IDS},
        "generic": {"x": FLOATS, "text": TEXTS, "list": lists, "label": IDS},
    }
    found = {}
    for layout, arrays in columns.items():
        for where, url in (("local", str(root / layout)), ("memory", f"memory://reader/{layout}")):
            assert data.write(arrays, url, num_shards=3, exists="overwrite").layout == layout
            found[f"{layout}-{where}"] = url
    return found


def read(folders: dict[str, str], layout: str, path: str, **options: Any) -> data.Reading:
    where = folders[f"{layout}-{'memory' if path == 'remote' else 'local'}"]
    if path == "ops" and native.records() is None:
        pytest.skip("the ops cannot be compiled here")
    return data.read(where, ops=path == "ops", **{"global_batch_size": 10, "seed": 3, **options})


def ids_of(epoch: Any) -> list[int]:
    """The ids of an epoch without padding."""
    return [int(i) for _, y, *w in epoch for i, k in zip(y, w[0] if w else tf.ones_like(y), strict=True) if k]


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_has_every_example_once_with_its_values(folders: dict[str, str], layout: str, path: str) -> None:
    reading = read(folders, layout, path)
    assert isinstance(reading, CountedDataset), "strategies would take it for any dataset"
    assert int(reading.cardinality()) == len(reading) == 11
    orders = []
    for epoch in range(2):
        assert reading.epoch == epoch
        for x, y, weight in reading:
            assert y.shape == weight.shape == (10,)
            features = x if isinstance(x, dict) else {"x": x}
            assert (features["x"].numpy() == FLOATS[y.numpy()]).all()
            if "text" in features:
                assert features["text"].numpy().tolist() == [TEXTS[i] for i in y.numpy()]
            if "list" in features:
                assert features["list"].to_list() == [list(range(i % 5)) for i in y.numpy()]
        orders.append(ids_of(read(folders, layout, path, state=reading.state(0)) if epoch else reading.take(0)))
    order = ids_of(read(folders, layout, path))
    assert sorted(order) == IDS.tolist()
    assert order == ids_of(read(folders, "fixed", "numpy")), "the order depends on the layout"


DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_and_shape_comes_back_on_every_path(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {"label": IDS, "empty": np.zeros((COUNT, 0), "float64")}
    for dtype in DTYPES if layout != "extent" else ["bool", "int8", "uint32", "float64"]:
        for shape in [(), (2, 3)] if layout != "extent" else [()]:
            kind = np.dtype(dtype).kind
            if kind in "iu":
                bounds = np.iinfo(dtype)
                values = rng.integers(bounds.min, bounds.max, (COUNT, *shape), dtype, endpoint=True)
            else:
                values = (
                    (rng.random((COUNT, *shape)) * 9 - 4).astype(dtype)
                    if kind == "f"
                    else rng.random((COUNT, *shape)) > 0.5
                )
            arrays[f"{dtype}{len(shape)}"] = values
    if layout != "fixed":
        arrays["text"] = TEXTS
    if layout == "generic":
        arrays["texts"] = np.array([[t, b"\0" + t] for t in TEXTS], object)
    assert data.write(arrays, tmp_path, num_shards=2).layout == layout
    for ops in (False, True):
        for x, y in data.read(tmp_path, global_batch_size=40, tail="keep", ops=ops):
            for name, values in x.items():
                expected = [TEXTS[i] for i in y.numpy()] if name == "text" else np.asarray(arrays[name])[y.numpy()]
                assert values.numpy().tolist() == np.asarray(expected, object).tolist(), (name, ops)
                assert name.startswith("text") or values.dtype.name == np.asarray(arrays[name]).dtype.name


def test_tensorflow_reads_the_files_as_any_others(folders: dict[str, str]) -> None:
    files = sorted(str(path) for path in Path(folders["generic-local"]).glob("*.tfrecord"))
    spec = {"x": tf.io.FixedLenFeature([3], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.data.TFRecordDataset(files).batch(COUNT).map(lambda records: tf.io.parse_example(records, spec))
    (batch,) = list(parsed)
    assert (batch["x"].numpy() == FLOATS).all()
    assert batch["label"].numpy().tolist() == IDS.tolist()


@pytest.mark.parametrize("tail", ["pad", "drop", "keep"])
def test_tails(folders: dict[str, str], tail: str) -> None:
    batches = list(read(folders, "fixed", "numpy", tail=tail))
    sizes = [len(batch[1]) for batch in batches]
    assert sizes == {"pad": [10] * 11, "drop": [10] * 10, "keep": [10] * 10 + [3]}[tail]
    assert all(len(batch) == (3 if tail == "pad" else 2) for batch in batches)
    if tail == "pad":
        assert batches[-1][2].numpy().tolist() == [1.0] * 3 + [0.0] * 7


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("parts", "layout", "tail"),
    [(1, "generic", "pad"), (2, "extent", "keep"), (3, "generic", "keep"), (8, "fixed", "pad")],
)
def test_shares_of_workers_are_the_global_batches(folders: dict[str, str], parts: int, layout: str, tail: str) -> None:
    """Other tests show this for any number of workers, without TensorFlow."""
    whole = [batch[1].numpy().tolist() for batch in read(folders, layout, "numpy", tail=tail)]
    shares = []
    for worker in range(parts):
        share = read(folders, layout, "numpy", tail=tail).share(worker, 1, parts)
        shares.append([(int(n), y[: int(n)].numpy().tolist()) for _, _, ((n, (_, y, *_)),) in share])
    assert {len(share) for share in shares} == {len(whole)}
    for step, batch in enumerate(whole):
        assert [i for share in shares for i in share[step][1]] == batch


@pytest.mark.thorough
@pytest.mark.parametrize("weights", [(3, 1), (1, 3), (1, 2, 7)])
def test_uneven_shares_are_cut_alike_by_the_reader_and_by_a_step(
    folders: dict[str, str], weights: tuple[int, ...]
) -> None:
    shares = Shares(weights)
    for worker in range(len(weights)):
        own = list(read(folders, "generic", "numpy", tail="keep").share(worker, 1, shares))
        for (_, _, ((count, (x, y)),)), batch in zip(own, read(folders, "generic", "numpy", tail="keep"), strict=True):
            rows, (part_of_x, part_of_y) = batch_rows.part_of(batch, worker, shares)
            assert int(count) == int(rows) == np.diff(shares.bounds(len(batch[1])))[worker]
            assert y.numpy().tolist() == part_of_y.numpy().tolist()
            assert x["x"].numpy().tolist() == part_of_x["x"].numpy().tolist()


@pytest.mark.parametrize(
    ("path", "batches"), [("numpy", 0), ("numpy", 1), ("numpy", 10), ("numpy", 11), ("ops", 7), ("remote", 7)]
)
def test_a_state_leads_to_what_was_left(folders: dict[str, str], batches: int, path: str) -> None:
    first = read(folders, "extent", path)
    whole = [ids_of([batch]) for batch in first]
    second = [ids_of([batch]) for batch in first]
    before = read(folders, "extent", path)
    iterator = iter(before)
    for _ in range(batches):
        next(iterator)
    state = json.loads(json.dumps(before.state(batches)))
    assert len(json.dumps(state)) < 1000
    after = read(folders, "extent", path, state=state)
    expected = whole[batches:] if batches < 11 else second
    assert after.epoch == (1 if batches == 11 else 0)
    assert len(after) == len(expected)
    assert [ids_of([batch]) for batch in after] == expected
    assert [ids_of([batch]) for batch in after][:3] == (second[:3] if batches < 11 else ids_third(folders, path))


def ids_third(folders: dict[str, str], path: str) -> list[list[int]]:
    reading = read(folders, "extent", path)
    for _ in range(2):
        list(reading)
    return [ids_of([batch]) for batch in reading.take(3)]


def test_another_batch_size_reads_the_rest_of_the_epoch(folders: dict[str, str]) -> None:
    whole = ids_of(read(folders, "fixed", "numpy"))
    state = read(folders, "fixed", "numpy").state(4)
    assert ids_of(read(folders, "fixed", "numpy", state=state, global_batch_size=7)) == whole[40:]


def test_a_reading_can_be_led_to_a_state(folders: dict[str, str]) -> None:
    reading = read(folders, "fixed", "numpy")
    whole = ids_of(reading)
    reading.seek({**reading.state(0), "epoch": 0, "consumed": 50})
    assert (reading.epoch, len(reading)) == (0, 6)
    assert ids_of(reading) == whole[50:]
    assert reading.epoch == 1


def test_where_nobody_counts_a_state_must_be_told_how_much_was_consumed(folders: dict[str, str]) -> None:
    reading = read(folders, "fixed", "numpy")
    assert reading.state()["consumed"] == 0
    iterator = iter(reading)
    next(iterator)
    with pytest.raises(ConfigError, match="batches="):
        reading.state()
    assert reading.state(batches=1)["consumed"] == 10
    for _ in iterator:
        pass
    assert reading.state()["consumed"] == COUNT


def test_an_iteration_that_is_broken_off_begins_again(folders: dict[str, str]) -> None:
    reading = read(folders, "fixed", "numpy")
    first = ids_of(reading.take(3))
    assert reading.epoch == 0
    assert ids_of(reading)[:30] == first
    assert reading.epoch == 1


def test_what_a_user_adds_is_tuned_and_rewritten_and_what_is_ours_is_not(folders: dict[str, str]) -> None:
    train = data.read(folders["fixed-local"], global_batch_size=4)
    for ours in (train._iterated, train.share(0, 1, 1)):
        assert ours.options().autotune.enabled is False
        assert ours.options().experimental_optimization.apply_default_optimizations is False
    theirs = train.map(lambda *batch: batch).options()
    assert theirs.autotune.enabled is theirs.experimental_optimization.apply_default_optimizations is None
    other = data.read(folders["fixed-local"], global_batch_size=4)
    count = tf.function(lambda: other.reduce(np.int64(0), lambda count, _: count + 1))  # which is the first to look
    assert int(count()) == int(other.reduce(np.int64(0), lambda count, _: count + 1)) == len(other)


def test_fit_advances_an_epoch_at_a_time(folders: dict[str, str]) -> None:
    reading = read(folders, "fixed", "numpy")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(reading, epochs=3, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations) == 33
    assert reading.epoch == 3


def randomised(features: dict[str, Any], seed: tf.Tensor) -> dict[str, Any]:
    return {**features, "x": features["x"] + tf.random.stateless_uniform([3], seed)}


def shouted(features: dict[str, Any]) -> dict[str, Any]:
    return {"x": features["x"] * 2.0, "length": tf.strings.length(features["text"]), "label": features["label"]}


def by_id(epoch: Any) -> dict[int, list[float]]:
    rows = ((x["x"] if isinstance(x, dict) else x, y) for x, y, *_ in epoch)
    return {int(i): row.tolist() for x, y in rows for i, row in zip(y, x.numpy(), strict=True)}


def test_augmentation_depends_on_seed_epoch_and_example_alone(folders: dict[str, str]) -> None:
    def values(layout: str = "fixed", **options: Any) -> dict[int, list[float]]:
        return by_id(read(folders, layout, "numpy", augment=randomised, **options))

    reference = values(tail="keep")
    assert all(np.ptp(np.array(reference[i]) - FLOATS[i]) > 0 for i in range(COUNT))
    assert values(tail="keep", global_batch_size=33) == reference
    assert values("generic", tail="keep", order="none") == reference
    assert values(tail="keep", seed=4) != reference
    state = read(folders, "fixed", "numpy", tail="keep").state(11)
    assert values(tail="keep", state=state) != reference


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_decoded_examples_are_kept_and_decoded_once(folders: dict[str, str], cache: str, tmp_path: Path) -> None:
    decoded = tf.Variable(0)

    def decode(features: dict[str, Any]) -> dict[str, Any]:
        decoded.assign_add(1)
        return shouted(features)

    where = "memory" if cache == "memory" else tmp_path / "kept"
    reading = read(folders, "extent", "numpy", decode=decode, cache=where, tail="keep")
    for epoch in range(3):
        for x, y in reading:
            assert (x["x"].numpy() == FLOATS[y.numpy()] * 2).all()
            assert x["length"].numpy().tolist() == [len(TEXTS[i]) for i in y.numpy()]
        if not epoch:
            once = int(decoded)
            assert once >= COUNT
    assert int(decoded) <= once + 2 * COUNT
    if cache == "disk":
        assert list((tmp_path / "kept").iterdir()) == []


def test_a_cache_says_what_it_cannot_keep(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cache keeps numbers"):
        read(folders, "extent", "numpy", cache="memory")


def test_shares_that_change_again_and_again_leave_nothing_behind(folders: dict[str, str]) -> None:
    now = [Shares.equal(2)]
    reading = read(folders, "fixed", "numpy")
    part = reading.share(0, 1, lambda: now[0])
    before = sum(isinstance(one, BatchChunks) for one in gc.get_objects())
    for weight in range(1, 30):
        now[0] = Shares((weight, 31))
        reading.begin()
        next(iter(part))
    assert sum(isinstance(one, BatchChunks) for one in gc.get_objects()) < before + 10


def test_a_cache_on_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused(StorageError, path=str(tmp_path)):
        DecodedCache(tmp_path, 10)._allocate([((4,), np.dtype("float32"))])
    monkeypatch.undo()
    kept = DecodedCache(tmp_path, 1000)
    kept._allocate([((4,), np.dtype("float32"))])
    assert kept._arrays[0].sum() == 0


def test_orders_that_are_not_full(folders: dict[str, str]) -> None:
    assert ids_of(read(folders, "fixed", "numpy", order="none", tail="keep")) == IDS.tolist()
    assert sorted(ids_of(read(folders, "fixed", "numpy", order="block", tail="keep"))) == IDS.tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_classes_get_their_share(layout: str, tmp_path: Path) -> None:
    kinds = np.array([0] * 90 + [1] * 13)
    arrays: dict[str, Any] = {"label": kinds}
    if layout != "fixed":
        arrays["text"] = TEXTS
    if layout == "generic":
        arrays["list"] = [[1] * (place % 3) for place in range(COUNT)]
    assert data.write(arrays, tmp_path, num_shards=2).layout == layout
    options: dict[str, Any] = {"global_batch_size": 10, "tail": "drop", "inputs": "label"}
    balanced = np.concatenate([y for _, y in data.read(tmp_path, order="balanced", **options)])
    assert np.bincount(balanced).tolist() == [50, 50]
    weighted = np.concatenate([y for _, y in data.read(tmp_path, order={0: 1, 1: 3}, **options)])
    assert abs(weighted.sum() - 75) <= 2


def test_what_is_x_y_and_weight(folders: dict[str, str], tmp_path: Path) -> None:
    first = next(iter(read(folders, "generic", "numpy", inputs=["x", "label"], label="label", tail="keep")))
    assert set(first[0]) == {"x", "label"}
    assert len(first) == 2
    data.write({"a": FLOATS, "b": np.full(COUNT, 0.5, "float32"), "y": IDS}, tmp_path, label="y")
    *_, (x, y, weight) = data.read(tmp_path, global_batch_size=10, weight="b")
    assert (x.shape, y.dtype) == ((10, 3), tf.int64)
    assert weight.numpy().tolist() == [0.5] * 3 + [0.0] * 7
    data.write({"a": FLOATS}, tmp_path / "x")
    assert next(iter(data.read(tmp_path / "x", global_batch_size=10, tail="keep"))).shape == (10, 3)


def test_one_example_makes_an_epoch(tmp_path: Path) -> None:
    data.write({"x": FLOATS[:1], "label": IDS[:1]}, tmp_path)
    ((x, y, weight),) = data.read(tmp_path, global_batch_size=4)
    assert x.shape == (4, 3)
    assert y.numpy().tolist() == [0] * 4
    assert weight.numpy().tolist() == [1, 0, 0, 0]
    pieces = [piece for part in range(3) for *_, piece in data.read(tmp_path, global_batch_size=1).share(part, 1, 3)]
    assert sorted(int(count) for ((count, _),) in pieces) == [0, 0, 1]


def test_batches_are_made_on_the_device_that_is_named(folders: dict[str, str]) -> None:
    reading = read(folders, "fixed", "numpy", device="/cpu:0")
    x, *_ = next(iter(reading))
    assert "CPU:0" in x.device
    assert len(reading) == reading.steps_per_epoch
    again = read(folders, "fixed", "numpy", device="/cpu:0", state=reading.state(batches=1))
    assert ids_of(again) == ids_of(read(folders, "fixed", "numpy"))[10:]


def test_a_missing_index_is_made_anew(folders: dict[str, str], tmp_path: Path) -> None:
    data.write({"text": TEXTS, "label": IDS}, tmp_path, num_shards=2)
    before = ids_of(data.read(tmp_path, global_batch_size=10))
    (tmp_path / "data-00001.index").unlink()
    assert ids_of(data.read(tmp_path, global_batch_size=10)) == before


def what_is_refused() -> Iterator[Any]:
    yield {"global_batch_size": 0}, ConfigError, "global_batch_size", 0
    yield {"global_batch_size": 10.0}, ConfigTypeError, "global_batch_size", 10.0
    yield {"seed": "1"}, ConfigTypeError, "seed", "'1'"
    yield {"order": "random"}, ConfigError, "order", "random"
    yield {"tail": "repeat"}, ConfigError, "tail", "repeat"
    yield {"label": "lable"}, ConfigError, "label", "lable"
    yield {"inputs": ["x", "z"]}, ConfigError, "inputs", "z"
    yield {"weight": "w"}, ConfigError, "weight", "w"
    yield {"decode": 5}, ConfigTypeError, "decode", 5
    yield {"on_corrupt": True}, ConfigError, "on_corrupt", True
    yield {"verify": "maybe"}, ConfigError, "verify", "maybe"
    yield {"state": {}}, ConfigError, "state", {}
    yield {"order": {5000: 1.0}}, ConfigError, "weights", [5000]
    yield {"tail": "drop", "global_batch_size": 104}, ConfigError, "tail", "drop"


@pytest.mark.parametrize(("options", "kind", "name", "received"), list(what_is_refused()))
def test_what_cannot_be_read_so_is_told(
    folders: dict[str, str], options: dict[str, Any], kind: type[TfdistError], name: str, received: object
) -> None:
    with refused(kind, name=name, received=received):
        read(folders, "fixed", "numpy", **options)


def test_a_directory_without_examples_is_told(tmp_path: Path) -> None:
    with refused(ConfigError, name="manifest.json", path=tmp_path / "nothing"):
        data.read(tmp_path / "nothing", global_batch_size=1)
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with refused(ConfigError, name="manifest.json", path=tmp_path):
        data.read(tmp_path, global_batch_size=1)


def test_padding_without_a_label_is_told(tmp_path: Path) -> None:
    data.write({"x": FLOATS}, tmp_path)
    with pytest.raises(ConfigError, match="tail='keep' or 'drop'"):
        data.read(tmp_path, global_batch_size=10, tail="pad")
    assert data.read(tmp_path, global_batch_size=10).rows is None  # which keeps the tail
