"""`tfdist run` with workers that are killed, and whose number changes: the result is that of an undisturbed job."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.light import python_path
from tfdist.data import write

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "integration" / "cases"
DEADLINE_SECONDS = 300

pytestmark = pytest.mark.timeout(DEADLINE_SECONDS + 30)


def run(folder: Path, *command: str, faults: list[dict[str, Any]] | None = None, **variables: str) -> list[Any]:
    """Run a job to its end; return its events."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TFDIST_") and key != "TF_CONFIG"}
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
    environ = {
        **kept,
        **threads,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": python_path(ROOT),
    }
    environ |= {"TFDIST_FAULTS": json.dumps(faults) if faults else "", **variables}
    events = folder / "events"
    events.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "run", "--event-file", str(events), *command],
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
    return [json.loads(line) for line in events.read_text().splitlines()]


def resumable(folder: Path, name: str) -> list[str]:
    return [str(CASES / "resumable.py"), str(folder / f"{name}.json"), str(folder / f"backup {name}"), "tfdist", "1"]


# One after the other: each of the first four starts does one step, three of an epoch and one of its validation, and a
# worker is killed before the next; then at every other point there is. Worker 0 is the one that saves.
KILLS = [
    *({"worker": 0, "step": 1}, {"worker": 1, "step": 1}, {"worker": 0, "step": 1}, {"worker": 1, "step": 1}),
    *({"worker": 0, "at": "save-begin"}, {"worker": 1, "at": "restore"}, {"worker": 0, "at": "save-middle"}),
    *({"worker": 1, "at": "tracing"}, {"worker": 0, "at": "save-commit"}, {"worker": 1, "at": "validation"}),
    {"worker": 1, "at": "epoch-end"},
]


@pytest.mark.parametrize("strategy", ["multi-worker", "ring"])
def test_killed_at_every_step_and_every_point_it_heals_and_equals_never_killed(strategy: str, tmp_path: Path) -> None:
    options = ["--strategy", strategy, "-n", "2", "--max-restarts", str(len(KILLS))]
    run(tmp_path, *options, *resumable(tmp_path, "never"))
    kills = [{"kind": "kill", "restart": restart, **kill} for restart, kill in enumerate(KILLS)]
    # as where disks are not shared: who does not see the backup is handed it
    own = {"OWN_BACKUPS": "1"} if strategy == "ring" else {}
    events = run(tmp_path, *options, *resumable(tmp_path, "killed"), faults=kills, **own)
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "never.json").read_text()
    failures = [event for event in events if event["event"] == "failed"]
    assert [failure["worker"] for failure in failures] == [kill["worker"] for kill in KILLS]


def test_one_process_with_two_replicas_heals_from_a_kill_and_from_a_hang(tmp_path: Path) -> None:
    options = ["--strategy", "mirrored", "--replicas-per-worker", "2", "--max-restarts", "3"]
    longer = {"EXAMPLES": "14", "VALIDATION": "6"}  # steps enough to know how long one takes: 4, and 2 of validation
    run(tmp_path, *options, *resumable(tmp_path, "never"), **longer)
    faults = [
        {"kind": "kill", "worker": 0, "at": "step", "step": 3},
        {"kind": "hang", "worker": 0, "at": "step", "step": 4, "restart": 1},  # the first step of an epoch
    ]
    events = run(tmp_path, *options, *resumable(tmp_path, "faults"), faults=faults, **longer)
    assert (tmp_path / "faults.json").read_text() == (tmp_path / "never.json").read_text()
    assert [event["cause"] for event in events if event["event"] == "failed"] == ["signal", "hang"]


def test_a_job_with_parameter_servers_goes_on_where_its_chief_was_killed(tmp_path: Path) -> None:
    options = ["--strategy", "parameter-server", "-n", "2", "--parameter-servers", "1", "--max-restarts", "2"]
    synchronous = {"TFDIST_MAX_STALENESS": "0"}
    run(tmp_path, *options, *resumable(tmp_path, "never"), **synchronous)
    kill = [{"kind": "kill", "worker": 0, "at": "step", "step": 6}]
    run(tmp_path, *options, *resumable(tmp_path, "killed"), faults=kill, **synchronous)
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "never.json").read_text()


@pytest.mark.parametrize("strategy", ["multi-worker", "ring"])
def test_every_example_counts_once_per_epoch_while_one_worker_becomes_three_and_then_two(
    strategy: str, tmp_path: Path
) -> None:
    script, data, result = str(CASES / "counting.py"), str(tmp_path / "data"), tmp_path / "result.json"
    write({"x": np.arange(40), "seen": np.ones(40, "float32")}, data, processes=1)
    options = ["--strategy", strategy, "-n", "1", "--max-workers", "3"]
    events = run(tmp_path, *options, script, str(result), str(tmp_path / "backup"), data)
    found = json.loads(result.read_text())
    assert found["counts"] == pytest.approx([6.0] * 40, abs=1e-4)
    assert found["steps"] == 30
    assert [event["workers"] for event in events if event["event"] == "stepping"] == [1, 3, 2]
