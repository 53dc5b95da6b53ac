"""`Shares`: every row of a batch belongs to one replica, in proportion to its weight, wherever the cut is computed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cluster.shares import Share, Shares
from tfdist.errors import ConfigError, ConfigTypeError

WEIGHTS = st.lists(st.integers(1, 50), min_size=1, max_size=20).map(tuple)
ROWS = st.integers(0, 40) | st.integers(0, 100_000)


@given(weights=WEIGHTS, rows=ROWS)
def test_parts_follow_each_other_and_add_up_within_a_row_of_their_weight(weights: tuple[int, ...], rows: int) -> None:
    bounds = Shares(weights).bounds(rows)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, rows, len(weights) + 1)
    lifted = len(Shares(weights).below_one_row(rows))
    for weight, (begin, end) in zip(weights, itertools.pairwise(bounds), strict=True):
        assert abs((end - begin) * sum(weights) - rows * weight) < sum(weights) * (1 + lifted)
        assert end > begin or rows < len(weights), "no replica is without rows where there is one for each"


@given(replicas=st.integers(1, 64), rows=ROWS)
def test_equal_shares_are_the_cuts_of_equal_parts(replicas: int, rows: int) -> None:
    assert Shares.equal(replicas).bounds(rows) == tuple(rows * one // replicas for one in range(replicas + 1))


@given(weights=WEIGHTS, factor=st.integers(1, 9), rows=ROWS)
def test_weights_of_one_proportion_are_one_value(weights: tuple[int, ...], factor: int, rows: int) -> None:
    multiplied = Shares(tuple(factor * weight for weight in weights))
    assert (multiplied, multiplied.bounds(rows)) == (Shares(weights), Shares(weights).bounds(rows))


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=6), count=st.integers(1, 3), rows=st.integers(0, 999))
def test_shares_of_processes_are_all_parts_in_order(weights: list[int], count: int, rows: int) -> None:
    shares = Shares(tuple(weights) * count)
    first = Share(0, count, shares)
    assert first.process_count == len(weights)
    slices = [one for process in range(len(weights)) for one in first.of_process(process).slices(rows)]
    assert slices == shares.all.slices(rows)
    assert [row for size, begin, _ in slices for row in range(begin, begin + size)] == list(range(rows))
    assert all(end - begin == max(size, 1) and 0 <= begin < max(rows, 1) for size, begin, end in slices)


def test_a_replica_of_weight_three_has_three_of_four_rows() -> None:
    assert Shares.of([3, 1], replicas=2).bounds(8) == (0, 6, 8)
    assert Shares((3, 1)).all.slices(1) == [(0, 0, 1), (1, 0, 1)], "the first has none, and a copy of a neighbour's"


def test_weights_that_give_less_than_a_row_are_named() -> None:
    assert Shares((1, 9, 1)).below_one_row(10) == (0, 2)
    assert Shares((1, 9, 1)).bounds(3) == Shares((4, 1, 1)).bounds(3) == (0, 1, 2, 3)
    assert Shares((1, 9, 1)).bounds(11) == (0, 1, 10, 11)
    assert not Shares((1, 9, 1)).below_one_row(11)
    assert Shares((8_191, 8_193)).below_one_row(2) == (0,), "which add up to as many as are possible"


@pytest.mark.parametrize(
    ("given", "kind"), [("3,1", ConfigTypeError), (5, ConfigTypeError), ((3, 1, 1), ConfigError), ((), ConfigError)]
)
def test_shares_are_a_weight_for_each_replica(given: object, kind: type[ConfigError]) -> None:
    with refused(kind):
        Shares.of(given, replicas=2)


@pytest.mark.parametrize(
    ("weights", "kind", "name"),
    [
        ((), ConfigError, "weights"),
        ((1, 0), ConfigError, "a weight of a replica"),
        ((1, 0.5), ConfigTypeError, "a weight of a replica"),
        ((8_193, 8_192), ConfigError, "weights"),
    ],
)
def test_what_is_no_share_is_refused(weights: tuple[int, ...], kind: type[ConfigError], name: str) -> None:
    with refused(kind, name=name):
        Shares(weights)
