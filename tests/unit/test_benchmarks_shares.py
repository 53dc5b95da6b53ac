"""The benchmark of shares, without workers: its figures, its table, and what is refused."""

import pytest

from benchmarks.shares.shares_race import ALIKE, UNLIKE, SharesBench, SharesReport, Table, Training
from tfdist.errors import ConfigError


def training(seconds: float, **more: float) -> Training:
    return Training(seconds=seconds, settling=3, moving=0, shares=(51, 13), callback=more.get("callback", 0.0))


def report() -> SharesReport:
    alike = {
        "equal": [training(2.0)] * 2,
        "control": [training(2.5)] * 2,
        "balanced": [training(2.0, callback=0.004)] * 2,
    }
    unlike = {"equal": [training(8.0)] * 2, "ideal": [training(3.0)] * 2, "balanced": [training(4.0)] * 2}
    return SharesReport(setup=SharesBench(steps=10), alike=alike, unlike=unlike, machine={})


def test_figures_are_steps_per_second_over_those_of_the_same_round() -> None:
    found = report()
    assert (tuple(found.alike), tuple(found.unlike)) == (ALIKE, UNLIKE)
    derived = found.derived()
    assert derived["against_ideal"].median == 0.75
    assert derived["against_equal"].median == 2.0
    assert derived["alike_against_equal"].median == 1.0
    assert derived["control_against_equal"].median == 0.8
    assert derived["overhead"].median == pytest.approx(0.002)
    assert (derived["most_changes"], derived["moved_after_settling"]) == (3, 0)


def test_what_workers_see_becomes_one_training() -> None:
    found = Training.of([[1.0, 2, 1, [4, 1], 0.25], [1.5, 2, 1, [4, 1], 0.5]])
    assert found == Training(seconds=1.5, settling=2, moving=1, shares=[4, 1], callback=0.5)


def test_tables_have_a_row_for_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharesReport, "ran_on", lambda self: "here")
    tables = [part for part in report().shown() if isinstance(part, Table)]
    assert [[row[0] for row in table.rows] for table in tables] == [list(ALIKE), list(UNLIKE)]
    assert tables[1].rows[2][1:] == ["400 [400-400]", "2.00 [2.00-2.00]", "0.75 [0.75-0.75]", "51:13"]


@pytest.mark.parametrize("options", [{"factor": 1}, {"rounds": 0}, {"every": 0}])
def test_options_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        SharesBench(**options)
