"""Quartiles, ratios of paired rounds, and the spread that Horovod's benchmarks print."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.bench.suite import Quartiles, quartiles, ratio, spread

positive = st.floats(1e-6, 1e6)


def test_one_round_is_its_own_quartiles() -> None:
    assert quartiles([3.0]) == Quartiles(3.0, 3.0, 3.0)


@given(st.lists(positive, min_size=1, max_size=20))
def test_quartiles_are_in_order_and_within_the_values(values: list[float]) -> None:
    found = quartiles(values)
    assert min(values) <= found.lower <= found.median <= found.upper <= max(values)
    assert found.median == pytest.approx(statistics.median(values))


def test_a_ratio_pairs_the_rounds() -> None:
    # one slow round of the machine slows both sides, and the ratio does not see it
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == Quartiles(2.0, 2.0, 2.0)


def test_a_ratio_needs_as_many_rounds_on_both_sides() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_the_spread_is_196_standard_deviations_of_the_rounds() -> None:
    found = spread([10.0, 12.0, 14.0, 16.0])
    assert found.mean == 13.0
    assert found.deviation == pytest.approx(1.96 * 5.0**0.5)
    assert spread([7.0]).deviation == 0.0


def test_a_small_rate_is_shown_with_more_digits() -> None:
    assert [str(spread([rate])) for rate in (5096.63, 2.754)] == ["5096.6 +- 0.0", "2.75 +- 0.00"]
