"""The benchmark of `tfdist plan`, without workers: errors, regret, and links that are none."""

import dataclasses

import pytest

from benchmarks.links.scaling_accuracy import Cell, ScalingBench, ScalingReport, slowed
from tests.refusals import refused
from tests.unit.test_plan_steps import SMALL, network_of
from tfdist.errors import ConfigError
from tfdist.planner.scaling.job_steps import Job, StepTime, predict


def cell(arm: str, predicted: float, measured: float, model: str = "dense") -> Cell:
    return Cell(link="1gbit", model=model, arm=arm, predicted=predicted, dominant="compute", measured=measured)


def test_errors_and_regret() -> None:
    """The data arm is chosen for the dense model, and takes 1.25 of the best; the choice for the other is the best."""
    cells = [
        *(cell("data", 1.0, 1.25), cell("sharded", 1.1, 1.0)),
        *(cell("data", 1.0, 1.0, "residual"), cell("sharded", 2.0, 2.0, "residual")),
    ]
    found = ScalingReport(setup=ScalingBench(), cells=cells, machine={})
    assert [one.error for one in cells] == pytest.approx([-0.2, 0.1, 0.0, 0.0])
    assert found.errors()[0] == pytest.approx(0.05)
    assert 0.1 < found.errors()[1] <= 0.2
    assert found.regret() == pytest.approx(0.125)
    assert found.derived()["regret"] == found.regret()


def test_each_round_has_its_own_prediction() -> None:
    """The machine is three times as slow in the second round, and the prediction says so."""
    terms = [StepTime(compute=1.0), StepTime(compute=3.0), StepTime(compute=3.0)]
    found = dataclasses.replace(cell("data", 3.0, 2.9), terms=terms, rounds=[1.0, 2.5, 2.9])
    assert found.error == pytest.approx(3.0 / 2.9 - 1)


def test_a_slower_machine_takes_longer_for_everything() -> None:
    whole = dataclasses.replace(SMALL, alone=SMALL, processes=2)
    for workers in (1, 2):
        jobs = [Job(profile=one, network=network_of(1e30), workers=workers) for one in (whole, slowed(whole, 3))]
        assert predict(jobs[1]).seconds == pytest.approx(3 * predict(jobs[0]).seconds)


@pytest.mark.parametrize("link", ["fast", "100mbit:late", "100mbit:-1"])
def test_links_that_are_none(link: str) -> None:
    with refused(ConfigError):
        ScalingBench(links=["local", link])  # before anything is measured
