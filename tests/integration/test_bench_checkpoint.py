"""The benchmark of checkpoints with a real model: every way is measured; never how fast any was."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.light import python_path
from tfdist.bench.checkpoint.ways import WAYS

ROOT = Path(__file__).parents[2]


def test_every_way_is_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tfdist", "bench", "checkpoint", "--megabytes", "0.5", "--saves", "2"),
            *("--steps", "2", "--rounds", "2", "--directory", str(tmp_path), "--json", "-"),
        ],
        env={**os.environ, "PYTHONPATH": python_path(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
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
