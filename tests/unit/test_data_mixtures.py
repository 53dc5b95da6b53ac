"""Mixtures, parts and batteries of orders: shares hold anywhere, and workers and resumption change no global batch."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.order_battery import global_batches, require_resumable
from tests.refusals import refused
from tests.slow_orders import CASES, epoch_length, slow_ids, stretches
from tfdist.data.order.epoch_orders import Block, Full, Order, Sequential
from tfdist.data.order.length_buckets import Bucketed, block_of
from tfdist.data.order.mixtures import Chosen, Mixed, Schedule, epoch_of
from tfdist.errors import ConfigError

SIZES = (61, 23, 7)
SHARES = (0.7, 0.2, 0.1)
GOLDEN = [15, 33, 35, 83, 71, 0, 56, 18, 30, 5, 60, 41]


def mixed(stop: str, shares: Sequence[float] = SHARES, sizes: Sequence[int] = SIZES, examples: int = 40) -> Mixed:
    phases = [(0, shares)]
    count = examples if stop == "never" else epoch_of(Schedule(phases), sizes, stop)
    schedule = Schedule(phases) if stop == "never" else Schedule(phases, count)
    return Mixed(schedule, [Full(size) for size in sizes], stop, count, stop)


def occurrences(order: Order, epochs: int = 1, sizes: Sequence[int] = SIZES) -> list[np.ndarray]:
    positions = np.arange(order.examples)
    found = np.concatenate([order.ids(seed=5, epoch=epoch, positions=positions) for epoch in range(epochs)])
    return np.split(np.bincount(found, minlength=sum(sizes)), np.cumsum(sizes)[:-1])


def test_what_a_mixture_computes_is_what_it_always_was() -> None:
    found = mixed("first").ids(seed=17, epoch=2, positions=np.arange(12))
    assert found.tolist() == GOLDEN


FOUR, FOUR_SIZES = (0.55, 0.25, 0.15, 0.05), (30_000, 20_000, 7000, 5000)


@pytest.mark.parametrize(
    ("phases", "sizes", "expected"),
    [
        ([(0, FOUR)], FOUR_SIZES, "813db95ef286e95b"),
        ([(0, range(1, 21))], range(5000, 5020), "23b4fb1f0bb32bfc"),
        (
            [(0, FOUR), (290_000, (1, 1, 0, 2)), (300_001, (0, 1, 3, 1))],
            [30_000, 20_000, 7000, 5000],
            "5fe816aefeb5355e",
        ),
    ],
    ids=["unequal shares", "many sources", "shares that change"],
)
def test_long_mixtures_are_what_they_always_were(phases: Any, sizes: Sequence[int], expected: str) -> None:
    """Windows, laps and positions of several windows; and the same without the ways for positions in a row."""
    order = Mixed(Schedule(phases), [Full(size) for size in sizes], "never", 90_000, "x")
    positions = np.arange(100, 70_000)
    found = order.ids(seed=17, epoch=3, positions=positions)
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == expected
    assert order.ids(seed=17, epoch=3, positions=positions[::-1]).tolist() == found[::-1].tolist()


@pytest.mark.parametrize("case", CASES)
def test_mixtures_are_those_of_plain_python(case: str) -> None:
    phases, sizes, stop, examples = CASES[case]
    length = epoch_length(phases, sizes, stop, examples)
    schedule = Schedule(phases) if stop == "never" else Schedule(phases, length)
    order = Mixed(schedule, [Full(size) for size in sizes], stop, length, "x")
    for epoch in (0, 3):
        for positions in stretches(length):
            at = np.array(positions)
            expected = slow_ids(phases, sizes, stop, length, seed=5, epoch=epoch, positions=positions)
            assert order.ids(seed=5, epoch=epoch, positions=at).tolist() == expected


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.integers(0, 2**40), st.integers(1, 20_000))
@settings(max_examples=30, deadline=None)
def test_shares_hold_in_every_range(weights: list[float], begin: int, length: int) -> None:
    shares = np.array(weights) / sum(weights)
    kinds, turns = Schedule([(0, weights)]).at(3, 0, np.arange(begin, begin + length))
    for kind, share in enumerate(shares):
        error = np.cumsum(np.concatenate([[0.0], (kinds == kind) - share]))
        assert error.max() - error.min() < 4 + 2.5 * np.log2(len(shares) + 1) + 3
        mine = turns[kinds == kind]
        assert len(np.unique(mine)) == len(mine), "a turn comes once"


def test_the_first_source_that_is_used_up_ends_an_epoch() -> None:
    counts = occurrences(mixed("first"))
    assert [int(each.max()) for each in counts] == [1, 1, 1]
    assert any((each == 1).all() for each in occurrences(mixed("first", (1, 5, 1)))), "one is used up"


def test_all_examples_come_before_an_epoch_ends() -> None:
    for each in occurrences(mixed("all")):
        assert each.min() >= 1
        assert each.max() - each.min() <= 1, "one lap of a source comes after the other"


def test_epochs_go_on_where_the_last_one_stopped() -> None:
    order = mixed("never")
    for each in occurrences(order, epochs=7):
        assert each.max() - each.min() <= 1


def test_a_source_without_a_share_never_comes_and_stops_nothing() -> None:
    for stop in ("first", "all", "never"):
        assert occurrences(mixed(stop, (1, 0, 1)))[1].sum() == 0


@pytest.mark.parametrize("inner", ["full", "none"])
@pytest.mark.parametrize("stop", ["first", "all", "never"])
def test_how_often_examples_come_in_the_long_run(stop: str, inner: str) -> None:
    phases = [(0, SHARES)]
    count = 40 if stop == "never" else epoch_of(Schedule(phases), SIZES, stop)
    orders = [Full(size) if inner == "full" else Sequential(size) for size in SIZES]
    order = Mixed(Schedule(phases) if stop == "never" else Schedule(phases, count), orders, stop, count, stop)
    counts = np.concatenate(occurrences(order, epochs=400))
    often = order.frequencies()
    assert often.sum() == pytest.approx(1)
    deviation = 0 if inner == "none" and stop != "never" else 5 * np.sqrt(counts.sum() * often.max())
    assert counts == pytest.approx(often * counts.sum(), abs=1e-6 + deviation)
    for source, known in zip(np.split(often, np.cumsum(SIZES)[:-1]), SHARES, strict=True):
        assert source.sum() == pytest.approx(known, abs=1e-9 if stop == "never" else 0.02)


def test_shares_change_at_their_positions() -> None:
    schedule = Schedule([(0, (1, 0)), (5000, (0, 1)), (5010, (1, 3))])
    kinds, turns = schedule.at(3, 0, np.arange(9010))
    assert kinds[:5000].sum() == 0
    assert kinds[5000:5010].all()
    assert abs(kinds[5010:].mean() - 0.75) < 0.002
    for kind in (0, 1):
        assert np.sort(turns[kinds == kind]).tolist() == list(range(int((kinds == kind).sum())))
    order = Mixed(schedule, [Sequential(5), Sequential(6)], "never", 40, "x")
    assert order.ids(seed=3, epoch=0, positions=np.zeros(0, np.int64)).tolist() == []
    with refused(ConfigError, name="weights"):
        order.frequencies()


LENGTHS = np.arange(301) * 7919 % 50
ORDERS: dict[str, Order] = {
    "first": mixed("first"),
    "all": mixed("all"),
    "never": mixed("never"),
    "blocks": Mixed(Schedule([(0, (1, 1))]), [Block(50, 4, 3), Sequential(20)], "never", 40, "x"),
    "buckets": Bucketed(LENGTHS, 4),
    "chosen": Chosen(Full(41), np.arange(0, 123, 3)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_workers_and_resumption_change_nothing(name: str) -> None:
    require_resumable(ORDERS[name])


def test_chosen_examples_come_once() -> None:
    numbers = np.arange(0, 123, 3)
    found = np.concatenate(global_batches(Chosen(Full(41), numbers), size=7, workers=3))
    assert np.sort(found).tolist() == numbers.tolist()
    assert Chosen(Full(41), numbers).name != Chosen(Full(41), numbers + 1).name


def test_batches_have_near_lengths_and_are_mixed() -> None:
    order = Bucketed(LENGTHS, 4)
    batches = global_batches(order, size=4, workers=2)
    assert np.sort(np.concatenate(batches)).tolist() == list(range(301))
    spreads = [int(np.ptp(LENGTHS[batch])) for batch in batches[:-1]]
    assert max(spreads) < 10, "of lengths up to 49"
    means = [float(LENGTHS[batch].mean()) for batch in batches[:64]]
    assert means != sorted(means)
    assert batches[0].tolist() != global_batches(order, size=4, workers=1, epoch=1)[0].tolist()
    assert Bucketed(np.arange(10), 4).name == "bucket:4x64:23c379d6c0f22ef6", "of states, too"
    names = (order.name, "bucket:1x64:", "bucket:0x64:", "bucket:x", "block:4x64")
    assert [block_of(name) for name in names] == [4, 1, None, None, None]
