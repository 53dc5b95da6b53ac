"""The position of a reader at the end of an epoch, and within the rest of one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist import data
from tfdist.errors import ConfigError

pytestmark = pytest.mark.quick

COUNT = 41


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    data.write({"x": np.arange(COUNT, dtype="float32"), "label": np.arange(COUNT)}, place)
    return place


def read(folder: Path, **options: Any) -> data.Reading:
    return data.read(folder, **{"global_batch_size": 12, "seed": 5, "tail": "keep", **options})


def labels(epoch: Any) -> list[list[int]]:
    return [y.numpy().tolist() for _, y, *_ in epoch]


def test_an_epoch_that_is_resumed_has_fewer_steps_than_the_next(folder: Path) -> None:
    reading = read(folder)
    first, second = labels(reading), labels(reading)
    resumed = read(folder, state=read(folder).state(batches=2))
    assert (resumed.epoch, resumed.steps, len(resumed), resumed.steps_per_epoch) == (0, 2, 2, 4)
    assert labels(resumed) == first[2:]
    assert (resumed.epoch, resumed.steps, int(resumed.cardinality())) == (1, 4, 4)
    assert labels(resumed) == second


def test_at_its_end_everybody_knows_that_an_epoch_was_consumed(folder: Path) -> None:
    reading = read(folder)
    labels(reading)
    assert reading.state() == reading.state(batches=4) == reading.state(batches=6)  # steps_per_execution=3
    assert read(folder, state=reading.state()).epoch == 1
    assert labels(read(folder, state=reading.state())) == labels(reading)


def test_an_epoch_that_is_broken_off_begins_again(folder: Path) -> None:
    reading = read(folder)
    next(iter(reading))
    assert reading.epoch == 0
    assert labels(reading) == labels(read(folder))


@pytest.mark.parametrize("how", ["read", "seek"])
def test_what_is_left_and_dropped_does_not_make_an_epoch(folder: Path, how: str) -> None:
    """36 of 41 are consumed, and larger batches leave the rest out."""
    state = read(folder).state(batches=3)
    if how == "read":
        reading = read(folder, tail="drop", state=state)
    else:
        reading = read(folder, tail="drop")
        reading.seek(state)
    assert (reading.epoch, reading.steps) == (1, 3)
    assert [len(batch) for batch in labels(reading)] == [12] * 3
    assert reading.epoch == 2


def test_a_weighted_epoch_is_resumed_and_a_state_of_the_former_order_is_refused(folder: Path) -> None:
    shares: dict[str, Any] = {"order": {label: label + 1.0 for label in range(COUNT)}, "global_batch_size": 8}
    reading = read(folder, **shares)
    whole = [label for _ in range(2) for batch in labels(reading) for label in batch]
    state = read(folder, **shares).state(batches=2)
    rest = read(folder, **{**shares, "global_batch_size": 5}, state=state)
    assert [label for _ in range(2) for batch in labels(rest) for label in batch] == whole[16:]
    for workers in (2, 3):
        found: list[list[int]] = [[] for _ in range(len(reading))]
        for worker in range(workers):
            part = read(folder, **shares)
            part.begin()
            for step, (_, _, ((count, (_, y)),)) in enumerate(part.share(worker, 1, workers)):
                found[step] += y.numpy()[: int(count)].tolist()
        assert [label for batch in found for label in batch] == whole[:COUNT], workers
    with pytest.raises(ConfigError, match="earlier tfdist"):
        read(folder, **shares, state={**state, "order": "weighted:7a5e29c1:0x500,1x500"})


def test_a_dropped_tail_counts_as_consumed(folder: Path) -> None:
    reading = read(folder, tail="drop")
    labels(reading)
    assert reading.state()["consumed"] == COUNT


@pytest.mark.parametrize("tail", ["pad", "keep", "drop"])
def test_other_batches_go_on_with_the_next_example(folder: Path, tail: str) -> None:
    order = [label for batch in labels(read(folder)) for label in batch]
    rest = read(folder, tail=tail, global_batch_size=7, state=read(folder).state(batches=1))
    found = [label for batch in labels(rest) for label in batch]
    left = order[12:]
    assert found == {"pad": left + order[:6], "keep": left, "drop": left[:28]}[tail]


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["full", "block", "none", "balanced"])
def test_a_state_goes_on_with_the_examples_that_it_is_of(order: str, tmp_path: Path) -> None:
    def write(first: int, end: int, **options: Any) -> None:
        numbers = np.arange(first, end)
        data.write({"x": numbers, "label": numbers % 3}, tmp_path, num_shards=2, **options)

    def read(**options: Any) -> data.Reading:
        return data.read(tmp_path, global_batch_size=8, order=order, seed=5, tail="keep", **options)

    def rest(reading: data.Reading) -> list[int]:
        return [int(x) for batch in reading for x in batch[0]]

    write(0, 50)
    whole = read()
    epochs = [rest(whole), rest(whole)]
    running = read()
    head = [int(x) for batch in running.take(3) for x in batch[0]]
    state, at_end = running.state(batches=3), whole.state()
    write(50, 80, exists="append")
    assert head == epochs[0][:24]
    assert rest(running) == epochs[0], "who reads goes on"
    resumed = read(state=state)
    assert (resumed.steps, resumed.steps_per_epoch) == (4, 7)
    assert rest(resumed) == epochs[0][24:]
    assert rest(resumed) == epochs[1], "and later epochs have the same examples"
    assert json.dumps(resumed.state()) == json.dumps({**at_end, "epoch": 1})
    sought = read()
    assert len(set(rest(sought)) | set(range(50))) > 50
    sought.seek(state)
    assert sought.population == 50
    assert rest(sought) == epochs[0][24:]
    with refused(ConfigError, name="resume", received="newest"):
        read(state=state, resume="newest")
    newest = read(state=at_end, resume="newest")
    assert newest.epoch == 2
    found = rest(newest)
    assert len(found) == 80
    fresh = read(state={**read().state(batches=0), "epoch": 2})
    assert rest(fresh) == found, "an epoch of all examples, as if they had always been there"
    newest.seek(state)
    newest.seek({**read().state(batches=0), "epoch": 2})
    assert rest(newest) == found
    for wrong in ({**state, "digest": "0" * 32}, json.dumps(state)):
        with refused(ConfigError, name="state"):
            read(state=wrong)


def test_a_state_of_chosen_examples_goes_on_with_them(tmp_path: Path) -> None:
    data.write({"x": np.arange(60)}, tmp_path)

    def read(**options: Any) -> data.Reading:
        numbers = np.arange(len(data.open(tmp_path)))[::-1]  # the appended ones come first
        chosen = data.select(tmp_path, numbers=numbers, parts={"a": 0.5, "b": 0.5}, part="a", key="x")
        return data.read(chosen, global_batch_size=4, **options)

    first = read()
    before = [int(x) for batch in first for x in batch]
    data.write({"x": np.arange(60, 100)}, tmp_path, exists="append")
    resumed = read(state={**first.state(batches=0), "epoch": 0})
    assert [int(x) for batch in resumed for x in batch] == before
    assert resumed.population == first.population == len(before)
    assert {int(x) for batch in data.poisson(resumed, seed=3) for x in batch} <= set(before)
    assert len(read().examples) == 100
