"""`make gpu-checks` without a GPU: the checks hold on processors, so what they find on a GPU is not their own fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.release  # other tests prove each of them on processors
@pytest.mark.timeout(600)
def test_checks_of_devices_hold_on_processors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "tests/gpu/device_checks.py", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'checks'}"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
    )
    assert ended.returncode == 0, ended.stdout[-6000:]
    assert " passed" in ended.stdout
