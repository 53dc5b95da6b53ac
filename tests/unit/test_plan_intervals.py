"""The best interval between saves: closed forms against each other, and against 100,000 failures drawn one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.planner.scaling.job_cost import Price, cost
from tfdist.planner.scaling.save_interval import Failures, best_interval, daly, useful_part, young
from tfdist.validation import as_seconds

FAILURES = 100_000


def drawn(interval: float, save: float, failures: Failures, draws: np.ndarray) -> float:
    """The part of the time that is kept, over all of these times between failures."""
    free = np.maximum(draws - failures.restart_seconds, 0)
    return float((np.floor(free / (interval + save)) * interval).sum() / draws.sum())


@pytest.mark.parametrize("shape", [1.0, 0.7, 1.5])
@pytest.mark.parametrize(("save", "restart"), [(2.0, 30.0), (300.0, 600.0)])
def test_the_interval_is_that_of_brute_force(shape: float, save: float, restart: float) -> None:
    """The best of 60 intervals, over the same hundred thousand failures, keeps no more than 1 % more."""
    failures = Failures(mtbf_seconds=3600.0, restart_seconds=restart, shape=shape)
    draws = failures.scale_seconds * np.random.default_rng(7).weibull(shape, FAILURES)
    found = best_interval(save, failures)
    tried = {one: drawn(one, save, failures, draws) for one in np.geomspace(found / 20, found * 20, 60)}
    kept = drawn(found, save, failures, draws)
    assert kept >= max(tried.values()) * 0.99
    assert useful_part(found, save, failures) == pytest.approx(kept, rel=0.01)
    for other in (found / 4, found * 4):
        assert useful_part(other, save, failures) == pytest.approx(drawn(other, save, failures, draws), rel=0.02)


def test_a_short_save_has_youngs_interval_and_a_longer_one_dalys() -> None:
    for save in (0.01, 1.0):
        assert best_interval(save, Failures(mtbf_seconds=1e6)) == pytest.approx(young(save, 1e6), rel=0.002)
    failures = Failures(mtbf_seconds=3600.0)
    assert best_interval(300.0, failures) == pytest.approx(daly(300.0, 3600.0), rel=0.01)
    assert abs(best_interval(300.0, failures) / young(300.0, 3600.0) - 1) > 0.1
    assert daly(8000.0, 3600.0) == 3600.0


def test_the_interval_does_not_depend_on_restarts_that_are_equally_likely() -> None:
    intervals = [best_interval(10.0, Failures(mtbf_seconds=3600.0, restart_seconds=one)) for one in (0.0, 600.0)]
    assert intervals[0] == pytest.approx(intervals[1], rel=1e-3)


def test_the_sum_is_dalys_where_failures_are_equally_likely() -> None:
    """A shape next to 1 goes through the sum, with its near terms alone or with the integral for the far ones."""
    for interval in (1.0, 500.0):
        near, exact = (
            useful_part(interval, 0.2, Failures(mtbf_seconds=4000.0, restart_seconds=60.0, shape=shape))
            for shape in (1 + 1e-9, 1.0)
        )
        assert near == pytest.approx(exact, rel=1e-6)


def test_nothing_is_useful_of_a_job_that_fails_at_once() -> None:
    hopeless = Price(hourly=1.0, failures=Failures(mtbf_seconds=100.0, restart_seconds=300.0))
    found = cost(3600.0, 100, hopeless, save_seconds=10.0)
    assert found.seconds == found.price == math.inf
    assert found.useful < 1e-9


def test_more_workers_fail_more_often() -> None:
    price = Price.spot("0.6:mtbf=4h,restart=1m,shape=0.8", hourly=2.0)
    assert price.failures == Failures(mtbf_seconds=4 * 3600.0, restart_seconds=60.0, shape=0.8)
    price = replace(price, failures=replace(price.failures, shape=1.0))
    one, eight = (cost(3600.0, count, price, save_seconds=5.0) for count in (1, 8))
    assert one.interval_seconds is not None
    assert eight.interval_seconds is not None
    assert one.interval_seconds / eight.interval_seconds == pytest.approx(math.sqrt(8), rel=0.05)
    assert one.useful > eight.useful
    assert one.price == pytest.approx(1.2 / one.useful)


def test_spot_is_no_cheaper_where_much_is_repeated() -> None:
    spot = Price.spot("0.9:mtbf=10m,restart=5m", hourly=1.0)
    assert cost(3600.0, 2, spot, save_seconds=20.0).price > cost(3600.0, 2, Price(hourly=1.0)).price


@pytest.mark.parametrize("text", ["0.6", "0.6:mtbf=0h", "x:mtbf=4h", "0.6:mtbf=4h,color=red", "0:mtbf=4h", ""])
def test_texts_that_are_no_price(text: str) -> None:
    with refused(ConfigError):
        Price.spot(text, hourly=1.0)


@pytest.mark.parametrize("text", ["", "4", "4 weeks", "0s", "-1h"])
def test_texts_that_are_no_time(text: str) -> None:
    with refused(ConfigError, name="--deadline"):
        as_seconds(text, name="--deadline")
