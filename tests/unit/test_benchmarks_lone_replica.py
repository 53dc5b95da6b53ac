"""The benchmark of one replica, without processes of its own: its figures, its table, and what is refused."""

import sys

import pytest

from benchmarks.peer_environment import quietly
from benchmarks.steps.lone_replica_race import ARMS, LoneReplicaBench, LoneReplicaReport, Table
from tfdist.errors import ConfigError, TfdistError


def report() -> LoneReplicaReport:
    found = {
        arm: [{"seconds": 0.001 * factor, "processor": 0.002, "megabytes": 700.0 + 7 * factor}] * 3
        for arm, factor in zip(ARMS, (1, 0.5, 2), strict=True)
    }
    return LoneReplicaReport(setup=LoneReplicaBench(), found=found, machine={})


def test_figures_are_what_an_arm_needed_over_what_plain_keras_needed() -> None:
    derived = report().derived()
    assert {arm: found.median for arm, found in derived["seconds_over_plain"].items()} == {
        "tfdist": 0.5,
        "TensorFlow": 2.0,
    }
    assert derived["processor_over_plain"]["tfdist"].median == 1.0
    assert derived["megabytes_over_plain"]["TensorFlow"].median == pytest.approx(714 / 707)


def test_the_table_has_a_row_for_each_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoneReplicaReport, "ran_on", lambda self: "here")
    (table,) = [part for part in report().shown() if isinstance(part, Table)]
    assert [row[0] for row in table.rows] == list(ARMS)
    assert table.rows[1][1:3] == ["0.5", "0.50 [0.50-0.50]"]


@pytest.mark.parametrize("options", [{"model": "tree"}, {"rounds": 0}, {"steps": 0}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LoneReplicaBench(**options)


def test_a_turn_that_fails_is_an_error() -> None:
    assert quietly([sys.executable, "-c", "print(3)"]) == "3\n"
    with pytest.raises(TfdistError):
        quietly([sys.executable, "-c", "raise SystemExit('no data')"])
