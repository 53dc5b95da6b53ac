"""`tfdist run` with workers that are killed at every step: the job heals, and its result is that of an undisturbed one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "integration" / "cases" / "resumable.py"
DEADLINE_SECONDS = 300

pytestmark = pytest.mark.timeout(DEADLINE_SECONDS + 30)


def run(folder: Path, name: str, *options: str, faults: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Run the training to its end; return what it has come to, and the events of the job."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TFDIST_") and key != "TF_CONFIG"}
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
    environ = {**kept, **threads, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    environ["TFDIST_FAULTS"] = json.dumps(faults) if faults else ""
    events, result = folder / f"{name}.events", folder / f"{name}.json"
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--event-file", str(events), *options, str(SCRIPT)]
    process = subprocess.Popen(
        [*command, str(result), str(folder / f"backup {name}"), "tfdist", "1"],
        env=environ,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=20)
    assert process.returncode == 0, errors[-4000:]
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return {"result": result.read_text(), "events": lines}


@pytest.mark.parametrize("strategy", ["multi-worker", "ring"])
def test_killed_at_every_step_it_heals_and_equals_never_killed(strategy: str, tmp_path: Path) -> None:
    expected = run(tmp_path, "never", "--strategy", strategy)
    # each start of the workers does one step, and one of them is killed before it begins the next
    kills = [{"kind": "kill", "worker": r % 2, "at": "step", "step": 1, "restart": r} for r in range(20)]
    healed = run(tmp_path, "kills", "--strategy", strategy, "--max-restarts", "20", faults=kills)
    assert healed["result"] == expected["result"]
    failures = [event for event in healed["events"] if event["event"] == "failed"]
    assert len(failures) >= 8
