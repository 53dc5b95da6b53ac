"""Where reading stands at the ends of epochs, and of what is left of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist import data

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
    assert reading.state() == reading.state(batches=4)
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
