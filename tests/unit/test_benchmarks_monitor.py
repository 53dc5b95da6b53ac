"""The figures of a report on the cost of recording; nothing runs here."""

import random

import pytest

from benchmarks.jobs.recording_cost import ARMS, RecordingBench, RecordingReport, both_ways, interval


def report() -> RecordingReport:
    seconds = {
        "nothing": [1.0, 2.0, 4.0],
        "observers": [1.1, 2.2, 4.0],
        "stamps": [1.2, 2.2, 4.2],
        "everything": [1.5, 2.2, 5.0],
    }
    nothing = {arm: [0.0] * 3 for arm in ARMS}
    inside = nothing | {"everything": [0.01, 0.03, 0.02]}
    return RecordingReport(
        setup=RecordingBench(), seconds=seconds, processor=seconds, flushing=nothing, inside=inside, machine={}
    )


def test_the_median_of_all_lies_in_the_interval_in_95_of_100() -> None:
    chance = random.Random(3)
    for count in (6, 7, 20, 41):
        found = [interval([chance.random() for _ in range(count)]) for _ in range(2000)]
        assert sum(low <= 0.5 <= high for low, high in found) >= 0.94 * 2000
    low, high = interval([chance.random() for _ in range(1000)])
    assert high - low < 0.1


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0], [3.0, 1.0, 2.0]])
def test_of_few_values_all_lie_in_the_interval(values: list[float]) -> None:
    assert interval(values) == (min(values), max(values))


def test_each_arm_is_as_often_before_another_one_as_behind_it() -> None:
    orders = [both_ways(ARMS, number) for number in range(8)]
    for one in ARMS:
        for other in set(ARMS) - {one}:
            assert sum(order.index(one) < order.index(other) for order in orders) == 4
