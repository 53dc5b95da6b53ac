"""The benchmark of `tfdist plan`, without workers: errors, regret, and links that are none."""

import pytest

from benchmarks.links.scaling_accuracy import Cell, ScalingBench, ScalingReport
from tests.refusals import refused
from tfdist.errors import ConfigError


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


@pytest.mark.parametrize("link", ["fast", "100mbit:late", "100mbit:-1"])
def test_links_that_are_none(link: str) -> None:
    with refused(ConfigError):
        ScalingBench(links=[link]).run()
