"""The benchmark of checkpoints with a real model: every way is measured; never how fast any was."""

import json
from pathlib import Path

from benchmarks.jobs.checkpoint_race import WAYS
from tests.integration.forks import Forks

COMMAND = str(Path(__file__).parents[2] / "benchmarks" / "__main__.py")


def test_every_way_is_measured(forking: Forks, tmp_path: Path) -> None:
    options = ["--megabytes", "0.5", "--saves", "2", "--steps", "2", "--rounds", "2", "--directory", str(tmp_path)]
    with forking.start(COMMAND, "checkpoint", *options, "--json", "-") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err.decode()
    report = json.loads(out)
    assert [way["name"] for way in report["ways"]] == list(WAYS)
    for way in report["ways"]:
        assert len(way["seconds"]) == len(way["stops"]) == len(way["starts"]) == 2
        assert min(way["seconds"]) > 0
        assert min(way["starts"]) > 0
    sizes = {way["name"]: way["bytes"] for way in report["ways"]}
    assert sizes["no saves"] == 0
    assert all(450_000 < size < 700_000 for name, size in sizes.items() if name != "no saves"), sizes
    assert len(report["results"]) == 3
    assert list(tmp_path.iterdir()) == []
