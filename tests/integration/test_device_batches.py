"""Batches whose parts are copied to devices ahead of their steps; here the devices are processors."""

import itertools
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.cluster.shares import Share, Shares
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow.device_batches import Ahead, DeviceIterator
from tfdist.strategies import local_replicas
from tfdist.training.global_batches import Input
from tfdist.variables import DEVICE_PREFETCH

pytestmark = pytest.mark.quick

EXAMPLES, BATCH = 22, 8  # the last batch is smaller
TWO = Share(0, 2, Shares((1, 1)))
AHEAD = Ahead(("/device:CPU:0", "/device:CPU:0"), 2)


def rows() -> tf.data.Dataset:
    """Batches with tensors of each kind: what devices take, what stays on the host, and no weights."""
    draw = np.random.default_rng(3)
    data = {
        "picture": draw.integers(0, 255, (EXAMPLES, 2, 2, 3), np.uint8),
        "vector": draw.normal(size=(EXAMPLES, 5)).astype(np.float32),
        "token": np.arange(EXAMPLES, dtype=np.int32),
        "name": np.array([f"{number}" for number in range(EXAMPLES)]),
    }
    return tf.data.Dataset.from_tensor_slices((data, np.arange(EXAMPLES, dtype=np.int64))).batch(BATCH)


def given(data: tf.data.Dataset, ahead: Ahead | None, **options: Any) -> Input:
    return Input(data, batches=None, share=TWO, workers=Workers(), ahead=ahead, **options)


def values(epoch: Iterable[Any]) -> list[tuple[int, list[Any]]]:
    """The examples of each batch, and its tensors."""
    return [(int(batch.rows), [leaf.numpy().tolist() for leaf in batch.tensors]) for batch in epoch]


def test_batches_are_those_of_the_host() -> None:
    early = given(rows(), AHEAD)
    epochs = [iter(early), iter(early)]
    assert isinstance(epochs[0]._elements, DeviceIterator)
    wanted = values(iter(given(rows(), None)))
    assert [count for count, _ in wanted] == [8, 8, 6]
    assert [values(epoch) for epoch in epochs] == [wanted, wanted]
    assert next(epochs[0], None) is None
    early.end()


def test_what_kernels_take_from_the_host_stays_there() -> None:
    early = given(rows(), AHEAD)
    division = early._division
    assert division is not None
    found = [(spec.dtype.name, place) for spec, place in zip(division.specs, division.places, strict=True)]
    part = [("string", -1), ("uint8", 0), ("int32", -1), ("float32", 0), ("int64", 0)]  # keys in their order
    second = [(name, place if place < 0 else 1) for name, place in part]
    assert found == [("int64", -1), ("int32", -1), ("int32", -1), *part, ("int32", -1), *second]


@pytest.mark.parametrize("kind", ["ragged", "sparse", "only text"])
def test_other_inputs_stay_on_the_host(kind: str) -> None:
    dense = tf.constant([[1.0, 0.0], [0.0, 2.0]] * 4)
    made = {
        "ragged": tf.RaggedTensor.from_tensor(dense, padding=0.0),
        "sparse": tf.sparse.from_dense(dense),
        "only text": tf.constant(["a", "b"] * 4),
    }[kind]
    early = given(tf.data.Dataset.from_tensors(made), AHEAD)
    assert not isinstance(iter(early)._elements, DeviceIterator)


def test_what_was_copied_ahead_does_not_count(tmp_path: Path) -> None:
    tfdist.data.write({"x": np.arange(41, dtype=np.float32), "label": np.arange(41)}, tmp_path)

    def read(**options: Any) -> Any:
        return tfdist.data.read(tmp_path, global_batch_size=8, seed=5, tail="keep", **options)

    whole = values(iter(given(read(), None)))
    reading = read()
    early = given(reading, AHEAD)
    epoch = iter(early)
    assert isinstance(epoch._elements, DeviceIterator)
    first = values(itertools.islice(epoch, 2))
    state = reading.state()
    early.end()
    assert state == read().state(batches=2)
    resumed = given(read(state=state), AHEAD)
    assert [*first, *values(iter(resumed))] == whole


def test_an_error_comes_with_its_batch_and_again() -> None:
    def batches() -> Iterator[Any]:
        for number in range(4):
            if number == 2:
                raise ValueError("the third disk is gone")
            yield np.full([BATCH], number, np.float32)

    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.float32))
    early = given(data, AHEAD)
    epoch = iter(early)
    for number in range(2):
        ((_, leaves),) = values(itertools.islice(epoch, 1))
        assert {one for leaf in leaves[1::2] for one in leaf} == {number}
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError):
            next(epoch)
    early.end()


def test_an_input_that_is_left_is_ended() -> None:
    is_closed = threading.Event()

    def batches() -> Iterator[Any]:
        try:
            while True:
                yield np.zeros([BATCH], np.float32)
        finally:
            is_closed.set()

    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.float32))
    early = given(data, AHEAD)
    epoch = iter(early)
    next(epoch)
    early.end()
    assert next(epoch, None) is None
    assert is_closed.wait(60)


@pytest.mark.parametrize("name", ["CPU:0", "/cpu:0", "/device:CPU:0", "/job:localhost/replica:0/task:0/device:CPU:0"])
def test_devices_have_the_names_that_tensorflow_takes(name: str) -> None:
    assert local_replicas.named_devices([name]) == ["/device:CPU:0"]


def test_batches_wait_in_the_memory_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = tfdist.strategies.MirroredStrategy(["CPU:0"])
    gpus = ("/device:GPU:0", "/device:GPU:1")

    def ahead() -> Ahead | None:
        return strategy._ahead

    assert ahead() is None
    monkeypatch.setattr(type(strategy.extended), "worker_devices", gpus)
    monkeypatch.setattr(type(strategy), "_slices", 2)
    assert ahead() == Ahead(gpus, 2)
    monkeypatch.setenv(DEVICE_PREFETCH.name, "0")
    assert ahead() is None
    monkeypatch.setenv(DEVICE_PREFETCH.name, "3")
    assert ahead() == Ahead(gpus, 3)
    monkeypatch.setattr(type(strategy), "_slices", 1)  # two devices compute with the same rows
    assert ahead() is None
