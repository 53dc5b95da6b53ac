"""The data benchmarks with real files: every side is measured; never how fast any was."""

import json
from pathlib import Path

import pytest

from benchmarks.files.data_race import TARGETS, DataBench
from benchmarks.files.data_sides import prepare
from benchmarks.files.formats_race import RACES, FormatsBench
from tfdist import data


def test_every_side_is_measured(tmp_path: Path) -> None:
    few = {"written_rows": 40, "written_images": 8, "rounds": 1}
    report = DataBench(rows=4096, images=256, **few, directory=str(tmp_path)).run()
    ways = {(row.subject, row.kind, row.way) for row in report.rows}
    assert set(TARGETS) <= ways
    assert {way for _, _, way in ways if "later epochs" in way} == {
        "generic, numpy, later epochs",
        "fixed, numpy, later epochs",
        "extent, numpy, later epochs",
    }
    for row in report.rows:
        assert len(row.seconds) == len(row.cpu_seconds) == 1
        assert min(row.seconds) > 0
        assert min(row.cpu_seconds) > 0
    assert 0 < report.state_bytes["tfdist"] < 1024 < report.state_bytes["tf.data"]
    results = json.loads(report.to_json())["results"]
    assert len(results) == len(report.rows)
    assert all(each[name]["median"] > 0 for each in results for name in ("speed", "time", "cpu"))
    # what was made stays, and is what is read
    assert {json.loads((tmp_path / kind / "manifest.json").read_text())["layout"] for kind in ("rows", "images")} == {
        "fixed",
        "extent",
    }
    assert json.loads((tmp_path / "rows-examples" / "manifest.json").read_text())["layout"] == "generic"
    prepare(DataBench(rows=4100, images=260), tmp_path)  # others are asked for
    for folder, examples in (("rows", 4100), ("rows-examples", 4100), ("images", 260)):
        assert data.info(tmp_path / folder).examples == examples


@pytest.mark.release
def test_formats_mixtures_and_packing_are_measured(tmp_path: Path) -> None:
    report = FormatsBench(images=256, rows=4096, documents=64, rounds=1, no_peers=True, directory=str(tmp_path)).run()
    ways = {(subject, way) for subject, ways in report.measured.items() for way in ways}
    peers = {"WebDataset", "MosaicML, batches", "MosaicML, dicts"}
    sides = {(race.subject, way) for race in RACES for way in (race.over, race.under)}
    assert ways == {(subject, way) for subject, way in sides if way not in peers}
    assert all(min(times) > 0 for ways in report.measured.values() for one in ways.values() for times in one.values())
    assert [race.subject for race, _ in report.compared()] == ["mixing", "mixing", "packing"]
