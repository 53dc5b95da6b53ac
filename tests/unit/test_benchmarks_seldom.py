"""The benchmark of workers that meet seldom, without workers: its figures, and what is refused."""

import dataclasses

import pytest

from benchmarks.links.seldom_race import ARMS, PEER, SeldomBench, SeldomReport, Training
from tfdist.errors import ConfigError


def report() -> SeldomReport:
    setup = SeldomBench(steps=10, checks=2, target=0.8)
    plain = Training(seconds=[20.0, 40.0], accuracy=[0.5, 0.9], bytes=[1000, 1000], peak=500.0, stepping=[20.0, 20.0])
    seldom = Training(seconds=[2.0, 4.0], accuracy=[0.85, 0.9], bytes=[10, 10], peak=25.0, stepping=[1.6, 1.6])
    alone = dataclasses.replace(seldom, stepping=[1.52, 1.52], bytes=[0, 0])
    trainings = {arm: [{"seldom": seldom, "alone": alone}.get(arm, plain)] for arm in ARMS}
    return SeldomReport(setup=setup, trainings=trainings, machine={})


def test_figures_are_those_of_a_reduction_in_every_step_over_others() -> None:
    found = report()
    assert found.times_fewer("bytes", "seldom") == 100
    assert found.times_fewer("peak", "seldom") == 20
    assert found.times_fewer("bytes", PEER) == 1
    seconds = found.seconds_to_target("seldom"), found.seconds_to_target(PEER)
    assert [one.median for one in seconds if one is not None] == [2.0, 40.0]
    assert found.step_seconds("seldom").median == 0.16
    assert found.computing("seldom") == pytest.approx(0.95)
    assert found.computing(PEER) == pytest.approx(0.076)
    assert found.times_fewer("bytes", "alone") is None


def test_what_workers_see_becomes_one_training() -> None:
    found = Training.of(
        [[[1.0, 2.0], [0.5, 0.6], [10, 30], 7.0, [1.0, 1.0]], [[1.5, 1.9], [0.5, 0.6], [20, 20], 9.0, [0.9, 1.2]]]
    )
    assert found == Training(seconds=[1.5, 2.0], accuracy=[0.5, 0.6], bytes=[20, 30], peak=9.0, stepping=[1.0, 1.2])


@pytest.mark.parametrize("options", [{"rate": "3mbit"}, {"workers": 1}, {"delay_ms": -1.0}, {"schedule": "diloco"}])
def test_links_and_workers_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SeldomBench(**options)  # type: ignore[arg-type]
