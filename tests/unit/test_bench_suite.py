"""The harness of the benchmarks: turns, options that are checked, reports as JSON and as tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, ratio, rounds, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.planner import machine

END = "load average at the end"


@dataclass(frozen=True, kw_only=True)
class Flight(Suite):
    """Two ways to fly."""

    birds: int = option(2, "How many.", minimum=2)
    height: float = option(1.0, "Of the flight.", minimum=0.5)
    ways: Sequence[str] = option((), "Only this.", choices=("up", "down"), flags=["--way"])
    rounds: int = option(3, "Measurements each.")
    quick: bool = option(False, "Fast.")
    folder: str | None = option(None, "Where.", metavar="FOLDER")

    def run(self, told: Told = untold) -> "Landing":
        with machine.observed() as about:
            seconds = in_turns(("up", "down"), lambda way, number: 2.0 if way == "up" else 1.0, count=self.rounds)
        return Landing(setup=self, seconds=seconds, machine=about)


@dataclass(frozen=True, kw_only=True)
class Landing(Report):
    """The report of a `Flight`."""

    setup: Flight
    seconds: Mapping[str, Sequence[float]]

    def derived(self) -> dict[str, Any]:
        return {"speed": ratio(self.seconds["up"], self.seconds["down"])}

    def shown(self) -> Iterator[Table | str]:
        yield Table(("way", "speed"), [["up", str(self.derived()["speed"])]])
        yield self.ran_on()

    def draw(self, path: Path) -> None:
        path.write_bytes(b"a picture")


def command(name: str = "fly") -> click.Command:
    return suite_command(name, Flight, examples={f"{name} away": "far"}, page="benchmarks", has_picture=True)


def test_every_arm_is_measured_once_a_round_and_each_round_begins_with_another_one() -> None:
    calls: list[tuple[str, int]] = []
    told: list[str] = []

    def measure(arm: str, number: int) -> int:
        calls.append((arm, number))
        return 10 * number

    found = in_turns("abc", measure, count=4, told=told.append, subject="letter ")
    assert [arm for arm, _ in calls] == [*"abc", *"bca", *"cab", *"abc"]
    assert [number for _, number in calls] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert found == {arm: [10, 20, 30, 40] for arm in "abc"}
    assert told[0] == "letter a, round 1 of 4"


def test_the_first_round_may_be_rotated_already() -> None:
    assert [order for _, order in rounds("ab", 2, first=1)] == [["b", "a"], ["a", "b"]]


def test_a_report_is_read_back_with_its_ratios_and_its_machine() -> None:
    read = json.loads(Flight(ways=("up",)).run().to_json())
    assert read["setup"] == {"birds": 2, "height": 1.0, "ways": ["up"], "rounds": 3, "quick": False, "folder": None}
    assert read["seconds"] == {"up": [2.0] * 3, "down": [1.0] * 3}
    assert Quartiles(**read["speed"]) == Quartiles(2.0, 2.0, 2.0)
    assert read["machine"].keys() - machine.describe().keys() == {END}


@pytest.mark.parametrize(
    "wrong", [{"birds": 1}, {"birds": True}, {"height": 0.1}, {"ways": ("sideways",)}, {"rounds": 0}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Flight(**wrong)


def test_the_options_of_a_command_are_the_fields_of_its_suite(tmp_path: Path) -> None:
    path, picture = tmp_path / "report.json", tmp_path / "picture.png"
    given = ["--birds", "3", "--way", "up", "--way", "down", "--quick", "--folder", str(tmp_path)]
    done = CliRunner().invoke(command(), [*given, "--json", str(path), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert json.loads(path.read_text())["setup"] == {
        "birds": 3,
        "height": 1.0,
        "ways": ["up", "down"],
        "rounds": 3,
        "quick": True,
        "folder": str(tmp_path),
    }
    assert picture.read_bytes() == b"a picture"
    assert ["up", "2.00", "[2.00-2.00]"] in [line.split() for line in done.stdout.splitlines()]
    assert json.loads(CliRunner().invoke(command(), ["--json", "-"]).stdout)["speed"]["median"] == 2.0


def test_a_command_refuses_what_its_suite_refuses() -> None:
    assert CliRunner().invoke(command(), ["--way", "sideways"]).exit_code == 2
    for arguments in (["--birds", "1"], ["--height", "0.1"]):
        done = CliRunner().invoke(command(), arguments)
        assert isinstance(done.exception, ConfigError)
        assert arguments[0] in str(done.exception)
