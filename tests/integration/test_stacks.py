"""`tfdist stacks` of jobs that run: of workers in a step, and of a chief and what serves it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.agents import environment, told
from tests.integration.steppers import STEPPER, happened, job

pytestmark = pytest.mark.quick

STANDING = """
def stands():
    tell(f"stands {ME}")
    wait_told("enough")
train(3, inside=lambda tick: stands() if tick == 2 else None)
"""


def test_stacks_of_a_job_that_runs(script, shared: Path) -> None:  # type: ignore[no-untyped-def]
    with job("-n", 2, script(STEPPER + STANDING), shared=shared) as process:
        for worker in range(2):
            told(shared, f"stands {worker}")
        job_id = happened(shared)[0]["job"]
        command = [sys.executable, "-m", "tfdist", "stacks", "--seconds", "60"]
        run = {"env": environment(shared), "capture_output": True, "text": True}
        found = subprocess.run([*command, "--json", job_id[:8]], **run)  # type: ignore[call-overload]
        shown = subprocess.run([*command, "--threads", job_id], **run)  # type: ignore[call-overload]
        missing = subprocess.run([*command, "no such job"], **run)  # type: ignore[call-overload]
        (shared / "enough").write_text("x")
        process.communicate()
    assert (process.returncode, found.returncode, shown.returncode, missing.returncode) == (0, 0, 0, 2), found.stderr
    processes = json.loads(found.stdout)["processes"]
    assert [one["task"] for one in processes] == ["worker 0", "worker 1"]
    assert all(any(frame.startswith("stands (") for frame in one["threads"][0]["frames"]) for one in processes)
    assert "worker 1 (process " in shown.stdout
    assert "'no such job'" in missing.stderr
