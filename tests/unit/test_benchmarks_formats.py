"""The benchmark of formats: its ratios are of the same round, and its goals are compared with their medians."""

import pytest

from benchmarks.files.formats_race import RACES, FormatsBench, FormatsReport, Race
from tfdist.bench.suite import Quartiles


def test_ratios_are_of_the_same_round_and_compared_with_the_goal() -> None:
    measured = {
        "tar": {
            "WebDataset": {"seconds": [4.0, 9.0], "cpu_seconds": [2.0, 2.0]},
            "tfdist": {"seconds": [1.0, 3.0], "cpu_seconds": [2.0, 2.0]},
        },
        "mixing": {"one source": {"seconds": [1.0, 1.0], "cpu_seconds": [1.0, 1.0]}},
    }
    about = dict.fromkeys(("processor", "cores", "tensorflow", "horovod", "python", "time", "load average"), "-")
    about["load average at the end"] = "-"
    report = FormatsReport(setup=FormatsBench(no_peers=True), machine=about, measured=measured)
    ((race, found),) = report.compared()
    assert race == RACES[0]
    assert (found["seconds"].median, found["cpu_seconds"].median) == pytest.approx((3.5, 1.0))
    assert (race.is_met(found["seconds"]), race.is_met(found["cpu_seconds"])) == (True, False)
    assert "left out" in " ".join(one for one in report.shown() if isinstance(one, str))
    at_most = Race("mixing", "four", "one", 1.05, at_least=False)
    assert [at_most.is_met(Quartiles(value, value, value)) for value in (1.04, 1.06)] == [True, False]
