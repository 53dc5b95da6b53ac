"""The benchmark of checkpoints without TensorFlow: what is computed from what, its table and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdist.bench.checkpoint import NONE, PEER, WAYS, Report, Setup, Way
from tfdist.cli import bench_checkpoint
from tfdist.cli.main import main
from tfdist.errors import ConfigError

SECONDS = {NONE: [10.0, 20.0], PEER: [14.0, 26.0], "tfdist, waits": [12.0, 24.0], "tfdist": [11.0, 21.0]}
STARTS = {NONE: [1.0, 1.0], PEER: [1.5, 1.5], "tfdist, waits": [1.2, 1.2], "tfdist": [1.1, 1.1]}


def report(seconds: dict[str, list[float]] = SECONDS) -> Report:
    ways = [
        Way(megabytes=10, name=name, saves=2, seconds=seconds[name], starts=STARTS[name], bytes=12_345_678)
        for name in WAYS
    ]
    about = {
        **dict.fromkeys(("processor", "cores", "tensorflow", "python", "time"), "some"),
        "load average": "0.1",
        "load average at the end": "1.9",
    }
    return Report(setup=Setup(megabytes=[10.0], saves=2, rounds=2), ways=ways, machine=about)


def test_a_wait_is_the_difference_to_the_same_round_for_each_save() -> None:
    found = report()
    peer, own = found.way(10, PEER), found.way(10, "tfdist")
    none = found.way(10, NONE)
    assert peer.waits(none) == [2.0, 3.0]
    assert own.waits(none) == [0.5, 0.5]
    assert found.wait(peer).median == 2.5
    assert found.share(own).median == pytest.approx(0.075)
    assert found.restore(own).median == pytest.approx(0.1)
    times = found.times_of_peer(own)
    assert times is not None
    assert times.median == 5.0


def test_a_wait_that_noise_hides_is_not_divided_by() -> None:
    hidden = report({**SECONDS, "tfdist": [9.0, 21.0]})
    assert hidden.wait(hidden.way(10, "tfdist")).median == 0.0
    assert hidden.times_of_peer(hidden.way(10, "tfdist")) is None
    assert json.loads(hidden.to_json())["results"][-1]["wait for the peer's / this"] is None


def test_the_report_as_json() -> None:
    results = json.loads(report().to_json())["results"]
    assert [each["way"] for each in results] == [name for name in WAYS if name != NONE]
    assert results[0]["bytes"] == 12_345_678
    assert results[-1]["wait per save"]["median"] == 0.5
    assert results[-1]["wait for the peer's / this"]["median"] == 5.0


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
        "keras 2500.0 [2250.0 to 2750.0] 35.0% [32.5% to 37.5%] - 12,345,678 500.0 [500.0 to 500.0]",
        "tfdist, waits 1500.0 [1250.0 to 1750.0] 20.0% [20.0% to 20.0%] 1.75 [1.62-1.88] 12,345,678 200.0 "
        "[200.0 to 200.0]",
        "tfdist 500.0 [500.0 to 500.0] 7.5% [6.3% to 8.8%] 5.00 [4.50-5.50] 12,345,678 100.0 [100.0 to 100.0]",
    ]
    assert "2 saves in a fit, 20 steps of 64 examples" in done.stdout
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
