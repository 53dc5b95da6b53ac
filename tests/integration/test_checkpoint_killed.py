"""Real processes that are killed by SIGKILL while they save; tests/soak has the same with 500 kills."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_no_kill_inside_a_save_spoils_a_checkpoint(tmp_path: Path, where: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "tests" / "soak" / "kill_inside_save.py"), "--kills", "15"),
            *("--megabytes", "8", "--directory", str(tmp_path), *(["--memory"] if where == "memory" else [])),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["inside a save"] == 15
    assert (report["bad"], report["left behind"]) == (0, [])
    assert list(tmp_path.iterdir()) == []
