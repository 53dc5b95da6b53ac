"""The data benchmark without TensorFlow: what is compared with what, what is asked, its table, picture and JSON."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdist.bench.data import benchmark as data
from tfdist.bench.data import picture as data_picture
from tfdist.bench.data.rows import PEERS, TARGETS, Row, Setup, Target
from tfdist.cli.bench import data as bench_data
from tfdist.cli.main import main
from tfdist.errors import ConfigError
from tfdist.measurement.ratio import Quartiles

SETUP: dict[str, Any] = {"rows": 4096, "images": 256, "written_rows": 10, "written_images": 5, "rounds": 2}


def report() -> data.Report:
    """Every side that something is asked of takes half of its peer's time, and a quarter more of CPU time."""
    setup = Setup(**SETUP)
    rows = [
        Row(subject, kind, way, setup.examples(kind, subject), [2.0, 4.0], [4.0, 8.0])
        for subject, way in PEERS.items()
        for kind in (("resume",) if subject == "resume" else ("rows", "images"))
    ]
    rows += [Row(s, k, way, setup.examples(k, s), [1.0, 2.0], [5.0, 10.0]) for s, k, way in TARGETS]
    rows.append(Row("resume", "resume", "tf.data, fresh start", 1, [1.0, 1.0], [1.0, 1.0]))
    rows.append(Row("resume", "resume", "tf.data, skip", 1, [7.0, 7.0], [7.0, 7.0]))
    about = {
        **dict.fromkeys(("processor", "cores", "tensorflow", "python", "time"), "some"),
        "load average": "0.1",
        "load average at the end": "1.9",
    }
    return data.Report(
        setup=setup,
        rows=rows,
        state_bytes={"tfdist": 150, "tf.data": 12_345_678},
        left_out={"grain": "it is not installed"},
        machine=about,
    )


def test_ratios_are_paired_by_round_and_point_the_same_way_as_their_names() -> None:
    peer = Row("read", "rows", "tf.data", 10, [2.0, 8.0], [1.0, 2.0])
    found = Row("read", "rows", "fixed, native", 10, [1.0, 4.0], [2.0, 4.0]).against(peer)
    assert [found[name].median for name in ("speed", "time", "cpu")] == [2.0, 0.5, 2.0]


def test_a_target_is_met_at_its_bound_and_not_beyond() -> None:
    for at_least, other in ((True, 1.79), (False, 1.81)):
        target = Target("speed", 1.8, at_least=at_least)
        assert target.is_met(Quartiles(1.8, 0.0, 9.0))
        assert not target.is_met(Quartiles(other, 0.0, 9.0))
    assert str(Target("cpu", 0.06, at_least=False)) == "cpu <= 0.06"


def test_what_is_asked_are_the_figures_of_the_design() -> None:
    asked = {key: (target.of, target.bound) for key, target in TARGETS.items()}
    assert asked["write", "rows", "tfdist"] == ("cpu", 0.06)
    assert asked["read", "rows", "generic, numpy"] == ("speed", 1.0)
    assert asked["read", "rows", "generic, native"] == ("speed", 2.0)
    assert asked["read", "rows", "fixed, native"] == ("speed", 1.8)
    assert asked["read", "images", "extent, native"] == ("speed", 1.2)
    assert asked["resume", "resume", "in the middle"] == ("time", 1.2)


@pytest.mark.parametrize("changes", [{"rows": 10}, {"images": 1}, {"rounds": 0}, {"written_rows": 0}])
def test_what_makes_no_sense_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Setup(**SETUP | changes)


def test_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[str] = []
    arms = {("rows", name): lambda name=name: calls.append(name) for name in "ab"}
    told: list[str] = []
    rows = data._measure("read", arms, Setup(**SETUP), told.append)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert [(row.way, len(row.seconds), len(row.cpu_seconds), row.examples) for row in rows] == [
        ("a", 2, 2, 4096),
        ("b", 2, 2, 4096),
    ]
    assert told[0] == "read rows: a, warming up"
    assert told[-1] == "read rows: b, round 2 of 2"


def test_the_report_is_json_with_ratios_and_targets() -> None:
    read = json.loads(report().to_json())
    found = {(each["kind"], each["way"]): each for each in read["results"]}
    assert found["rows", "fixed, native"]["speed"]["median"] == 2.0
    assert found["rows", "fixed, native"]["is_met"] is True
    assert found["rows", "tfdist"]["is_met"] is False
    assert found["resume", "tf.data, skip"]["time"]["median"] == 7.0
    assert read["state_bytes"]["tfdist"] == 150


def test_the_tables_have_every_side_and_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    bench_data._print(report())
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for subject, kind, way in TARGETS:
        name = way if subject == "resume" else f"{kind} {way}"
        assert any(line.startswith(name) and "met" in line for line in lines), name
    assert any(line.startswith("rows fixed, native") and line.endswith("speed >= 1.8: met") for line in lines)
    assert any(line.startswith("rows tfdist") and line.endswith("cpu <= 0.06: not met") for line in lines)
    told = " ".join(lines)
    assert "12,345,678 bytes" in told
    assert "grain left out: it is not installed." in told
    assert "load 0.1 before, 1.9 after" in told


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    data_picture.draw(report(), tmp_path / "data.png")
    drawn = (tmp_path / "data.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert struct.unpack(">II", drawn[16:24]) == (1300, 1040)


def test_the_command_measures_what_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        bench_data, "run", lambda setup, directory, on_turn: given.extend((setup, directory)) or report()
    )
    path = tmp_path / "report.json"
    done = CliRunner().invoke(
        main, ["bench", "data", "--rows", "5000", "--rounds", "3", "--directory", str(tmp_path), "--json", str(path)]
    )
    assert done.exit_code == 0, done.output
    assert (given[0].rows, given[0].rounds, given[1]) == (5000, 3, tmp_path)
    assert json.loads(path.read_text())["setup"]["rows"] == 4096


def test_help_says_what_the_sides_are() -> None:
    done = CliRunner().invoke(main, ["bench", "data", "--help"])
    assert done.exit_code == 0
    told = " ".join(done.output.split())
    for word in (
        "tf.train.Example",
        "TFRecordDataset",
        "parse_example",
        "generic",
        "fixed",
        "extent",
        "verify=",
        "grain",
    ):
        assert word in told
    for word in ("skip", "same round", "--quick", "--directory"):
        assert word in told
