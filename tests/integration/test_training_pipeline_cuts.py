"""Models cut at each place where they can be: the numbers of one device, with what hangs on tensors there."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.case_pools import call_one, start
from tests.integration.forks import Forks
from tfdist.testing.pool import WorkerPool


@pytest.fixture(scope="module")
def devices(forking: Forks) -> Iterator[WorkerPool]:
    """One process with three devices."""
    with start(forking, "pipeline", LOGICAL_CPUS="3") as pool:
        yield pool


def cut(pool: WorkerPool, name: str, **options: Any) -> dict[str, Any]:
    return dict(call_one(pool, "cut", of="cut_cases", name=name, **options))


@pytest.mark.parametrize(
    "name",
    [
        "heads",
        *(pytest.param(name, marks=pytest.mark.release) for name in ("masked", "noted", "open", "within")),
        "masked within",
    ],
)
def test_two_stages_have_the_numbers_of_one_device_wherever_they_meet(devices: WorkerPool, name: str) -> None:
    found = cut(devices, name, stages=2, schedule="1f1b")
    assert found == {place: {} for place in found}
    assert len(found) >= 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("heads", {"first": 6}, marks=pytest.mark.release),
        ("masked", {"evaluates": True, "first": 4}),
        pytest.param("masked within", {"first": 2}, marks=pytest.mark.release),
    ],
)
def test_three_stages_have_the_numbers_of_one_device_wherever_they_meet(
    devices: WorkerPool, name: str, options: dict[str, Any]
) -> None:
    found = cut(devices, name, stages=3, schedule="gpipe", **options)
    assert found == {place: {} for place in found}


def test_gradients_go_back_through_complex_values(devices: WorkerPool) -> None:
    assert cut(devices, "spectra", stages=2, schedule="1f1b", first=2) == {"2": {}}


def test_gradients_of_an_added_loss_go_back_through_a_loop(devices: WorkerPool) -> None:
    found = cut(devices, "looping", stages=2, schedule="1f1b", evaluates=True)
    assert found == {place: {} for place in ("1", "2")}


def test_a_gradient_that_a_later_part_stops_is_none_and_no_zeros(devices: WorkerPool) -> None:
    assert cut(devices, "stopped", stages=2, schedule="1f1b") == {"1": {}, "2": {}}


def test_parts_that_share_a_layer_draw_the_numbers_of_one_device_one_after_the_other(devices: WorkerPool) -> None:
    found = cut(devices, "noisy", stages=2, schedule="1f1b", first=3, microbatches=1, evaluates=True)
    assert found == {"3": {}}


def test_the_stages_of_a_model_within_a_model_are_described(devices: WorkerPool) -> None:
    lines = call_one(devices, "described", of="cut_cases")
    first, second = lines[-2:]
    assert re.search("inner/first: 2 calls, 33,280 bytes", first)
    assert re.search("inner/third: 3 calls, 33,800 bytes", second)
