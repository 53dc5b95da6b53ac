"""The benchmark of checkpoints without TensorFlow: what is computed from what, its table and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdist.bench.checkpoint.benchmark import Report
from tfdist.bench.checkpoint.ways import NONE, PEER, WAYS, Setup, Way
from tfdist.cli.bench import checkpoint as bench_checkpoint
from tfdist.cli.main import main
from tfdist.errors import ConfigError

SECONDS = {NONE: [10.0, 20.0], PEER: [14.0, 26.0], "tfdist, waits": [12.0, 24.0], "tfdist": [11.0, 21.0]}
STOPS = {NONE: [0.0, 0.0], PEER: [1.0, 2.0], "tfdist, waits": [0.5, 2.0], "tfdist": [0.1, 0.1]}
STARTS = {NONE: [1.0, 1.0], PEER: [1.5, 1.5], "tfdist, waits": [1.2, 1.2], "tfdist": [1.1, 1.1]}


def report() -> Report:
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
    return Report(setup=Setup(megabytes=[10.0], saves=2, rounds=2), ways=ways, machine=about)


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
    assert results[-1]["stop for the peer's / this"]["median"] == 15.0
    assert results[-1]["added per save"]["median"] == 0.5


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Setup, Any]] = []

    def run(setup: Setup, directory: Path | None, *, on_turn: Any) -> Report:
        asked.append((setup, directory))
        on_turn("one")
        return report()

    monkeypatch.setattr(bench_checkpoint, "run", run)
    done = CliRunner().invoke(main, ["bench", "checkpoint", "--megabytes", "10", "--saves", "2", "--directory", "."])
    assert done.exit_code == 0, done.output
    [(setup, directory)] = asked
    assert (list(setup.megabytes), setup.saves, directory) == ([10.0], 2, Path("."))
    rows = [line.split() for line in done.stdout.splitlines() if line.lstrip().startswith("10 MB")]
    assert [" ".join(row[2:]) for row in rows] == [
        "keras 1500.0 [1250.0 to 1750.0] - 2500.0 [2250.0 to 2750.0] 35.0% [32.5% to 37.5%] 12,345,678 500.0 "
        "[500.0 to 500.0]",
        "tfdist, waits 1250.0 [875.0 to 1625.0] 1.50 [1.25-1.75] 1500.0 [1250.0 to 1750.0] 20.0% [20.0% to 20.0%] "
        "12,345,678 200.0 [200.0 to 200.0]",
        "tfdist 100.0 [100.0 to 100.0] 15.00 [12.50-17.50] 500.0 [500.0 to 500.0] 7.5% [6.3% to 8.8%] 12,345,678 100.0 "
        "[100.0 to 100.0]",
    ]
    assert "2 saves in a fit, 10 steps of 64 examples" in done.stdout
    assert "load 0.1 before, 1.9 after" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["--megabytes", "0"], ["--saves", "0"], ["--steps", "x"], ["--directory", "/nowhere"]]
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["bench", "checkpoint", *arguments])
    assert done.exit_code == 2
    assert arguments[0] in done.output


@pytest.mark.parametrize("setup", [{"megabytes": [0.0]}, {"saves": 0}, {"rounds": True}])
def test_a_setup_that_makes_no_sense(setup: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Setup(**setup)
