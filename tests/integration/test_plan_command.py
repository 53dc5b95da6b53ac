"""`tfdist plan` with real processes: measured, planned, run as planned, and compared."""

import json
import os
from pathlib import Path

import pytest

from tests.integration.forks import DEADLINE_SECONDS, Forks
from tfdist import cache
from tfdist.planner.scaling import plan_record

SCRIPT = """
import keras, numpy as np, tfdist
x = np.ones((128, 8), "float32")
with tfdist.strategies.from_environment().scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=4, verbose=0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script, and a cache of its own that has the compiled ops."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "cache").mkdir()
    ops = cache.folder(os.environ) / "ops"
    if ops.is_dir():
        (tmp_path / "cache" / "ops").symlink_to(ops)
    return tmp_path


def said(forking: Forks, folder: Path, *words: str) -> tuple[str, str]:
    """Run a command to its end; return its standard output and standard error."""
    with forking.start("tfdist", *words, cwd=folder, TFDIST_CACHE_DIR=str(folder / "cache")) as process:
        out, err = (text.decode() for text in process.communicate(DEADLINE_SECONDS))
    assert process.returncode == 0, err
    return out, err


def test_a_script_is_planned_run_and_compared(forking: Forks, folder: Path) -> None:
    record = folder / "cache" / "plan" / "record.json"
    out, _ = said(forking, folder, "plan", "calibrate")
    found = plan_record.read(record).calibration
    assert found is not None
    assert found.link is not None
    assert found.link.is_local
    assert min(found.flops, found.memory_bytes_per_second, found.disk_bytes_per_second, found.step_seconds) > 0
    assert "Gflop/s" in out
    given = ["--workers", "2", "--method", "data", "--timeout-seconds", "300", "--json", "-"]
    out, _ = said(forking, folder, "plan", *given, "train.py")
    (row,) = json.loads(out)["rows"]
    assert row["method"] == "data"
    assert row["command"] == "tfdist run --strategy multi-worker -n 2 train.py"
    assert not plan_record.read(record).pairs
    _, err = said(forking, folder, *["run", "--monitor", "--strategy", "multi-worker", "-n", "2", "train.py"])
    (pair,) = plan_record.read(record).pairs
    assert pair.predicted == row["step_seconds"]
    assert pair.measured > 0
    assert "planned" in err
