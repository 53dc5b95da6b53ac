"""The benchmark of checkpoints without TensorFlow: what is computed from what, its table and JSON."""

import json

import pytest

from benchmarks.jobs.checkpoint_race import NONE, PEER, WAYS, CheckpointBench, CheckpointReport, Way
from tfdist.errors import ConfigError

SECONDS = {NONE: [10.0, 20.0], PEER: [14.0, 26.0], "tfdist, waits": [12.0, 24.0], "tfdist": [11.0, 21.0]}
STOPS = {NONE: [0.0, 0.0], PEER: [1.0, 2.0], "tfdist, waits": [0.5, 2.0], "tfdist": [0.1, 0.1]}
STARTS = {NONE: [1.0, 1.0], PEER: [1.5, 1.5], "tfdist, waits": [1.2, 1.2], "tfdist": [1.1, 1.1]}


def report() -> CheckpointReport:
    ways = [
        Way(
            megabytes=10,
            name=name,
            saves=2,
            seconds=SECONDS[name],
            stops=STOPS[name],
            starts=STARTS[name],
            bytes=12_345_678,
        )
        for name in WAYS
    ]
    about = {
        **dict.fromkeys(("processor", "cores", "tensorflow", "python", "time"), "some"),
        "load average": "0.1",
        "load average at the end": "1.9",
    }
    return CheckpointReport(setup=CheckpointBench(megabytes=[10.0], saves=2, rounds=2), ways=ways, machine=about)


def test_ratios_and_differences_are_those_of_the_same_round() -> None:
    found = report()
    peer, own, none = found.way(10, PEER), found.way(10, "tfdist"), found.way(10, NONE)
    assert peer.added(none) == [2.0, 3.0]
    assert own.added(none) == [0.5, 0.5]
    assert found.added(peer).median == 2.5
    assert found.share(own).median == pytest.approx(0.075)
    assert found.restore(own).median == pytest.approx(0.1)
    assert found.times_of_peer(own).median == pytest.approx(15.0)
    assert found.times_of_peer(found.way(10, "tfdist, waits")).median == 1.5


def test_the_report_as_json() -> None:
    results = json.loads(report().to_json())["results"]
    assert [each["way"] for each in results] == [name for name in WAYS if name != NONE]
    assert results[0]["bytes"] == 12_345_678
    assert results[-1]["stop per save"]["median"] == 0.1
    assert results[-1]["peer over this"]["median"] == 15.0
    assert results[-1]["added per save"]["median"] == 0.5


def test_a_folder_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="/nowhere"):
        CheckpointBench(directory="/nowhere")
