"""The wall clock, which may be set at any moment, decides nothing: what waits or compares takes the monotonic one."""

import ast
import os
import time
from pathlib import Path

import pytest

from tfdist.monitor.watch import resource_usage

PACKAGE = Path(__file__).parents[2] / "tfdist"
READINGS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
#: files that read it, and what for
READ_IN = {
    "cache.py": "what was left a day ago is removed",
    "callbacks/backup/session.py": "a moment that is shown",
    "doctor/machine_check.py": "it is what is judged",
    "monitor/exporters/exporting.py": "a moment that is shown",
    "monitor/exporters/mlflow_exporter.py": "a moment that is shown",
    "monitor/exporters/tensorboard_exporter.py": "a moment that is shown",
    "federated/round_exporters.py": "a moment that is shown",
    "jobs/agent/monitoring.py": "a moment that is shown",
    "jobs/agent/restart_reporter.py": "a moment that is shown, beside the monotonic one",
    "jobs/process/script_worker.py": "a moment that is shown, beside the monotonic one",
    "jobs/reporting/run_folder.py": "a moment that is shown",
    "planner/machine.py": "a moment that is shown",
    "monitor/recording/recorder.py": "TensorFlow's stamps have it; a reading in which it was set is dropped",
    "training/balance/balance_shares.py": "TensorFlow's stamps have it; the median of many readings counts",
    "storage/block_cache.py": "which blocks of a cache were used last",
    "monitor/watch/observing.py": "a moment that is shown",
    "monitor/watch/resource_usage.py": "the age of a process, once",
    "tune/search/search_results.py": "a moment that is shown",
}


def reads_wall_clock(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in READINGS
        for node in ast.walk(tree)
    )


def test_the_wall_clock_is_read_where_a_moment_is_shown() -> None:
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert {name for name, path in paths.items() if reads_wall_clock(path)} == READ_IN.keys()


@pytest.mark.parametrize("shift", [-1e9, 1e9])
def test_what_a_process_uses_does_not_follow_a_clock_that_is_set(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    one = resource_usage.Process(os.getpid())
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + shift)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    found = one.look().cpu
    assert found is not None
    assert 0 < found <= os.cpu_count() * 2  # type: ignore[operator]
