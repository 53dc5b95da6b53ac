"""Reports of a function in a job of Ray: whole or absent, kept by the rule, and refused if they cannot be kept."""

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.engines.ray import Checkpoint, CheckpointConfig, Result, RunConfig, Trainer, get_checkpoint, report
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError, StorageError
from tfdist.jobs.reporting import reports, run_folder
from tfdist.variables import REPORTS


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run, to which this process reports as the chief of a job."""
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    with run_folder.running(folder, CheckpointConfig(num_to_keep=2)) as variables:
        monkeypatch.setenv(REPORTS.name, variables[REPORTS.name])
        monkeypatch.setattr(reports, "_next", None)
        yield folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    (folder / "more").mkdir(parents=True)
    (folder / "more" / "weights").write_text("w")
    return folder


def test_reports_are_a_history_with_checkpoints_of_which_the_newest_are_kept(run: Path, saved: Path) -> None:
    assert get_checkpoint() is None
    for epoch in range(4):
        report({"loss": np.float32(4 - epoch), "all": {"a": [np.arange(2), None, True]}}, saved if epoch != 2 else None)
    result = Result.from_path(run)
    assert result.metrics == {"loss": 1.0, "all": {"a": [[0, 1], None, True]}}
    assert [one["training_iteration"] for one in result.history] == [1, 2, 3, 4]
    assert sorted(one.name for one in run.iterdir() if one.is_dir()) == ["checkpoint_000001", "checkpoint_000002"]
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [3.0, 1.0]
    found = get_checkpoint()
    assert found == result.checkpoint == Checkpoint(str(run / "checkpoint_000002"))
    assert Path(found.to_directory(run.parent / "copy"), "more", "weights").read_text() == "w"
    with found.as_directory() as folder:
        report({}, Checkpoint.from_directory(folder))  # one of its own, again
    assert (run / "checkpoint_000003" / "more" / "weights").exists()
    assert saved.is_dir()


def test_a_training_that_goes_on_replaces_reports_and_keeps_those_behind_until_then(run: Path, saved: Path) -> None:
    for loss in (1, 2, 3):
        report({"loss": loss}, saved)
    reports.resume_at(1)
    report({"loss": 20}, saved)
    result = Result.from_path(run)
    assert [(one["loss"], one["training_iteration"]) for one in result.history] == [(1, 1), (20, 2), (3, 3)]
    report({"loss": 30})
    report({"loss": 40})
    assert [one["loss"] for one in Result.from_path(run).history] == [1, 20, 30, 40]
    reports.resume_at(9)  # of a folder that was moved away
    report({"loss": 50})
    assert Result.from_path(run).history[-1]["training_iteration"] == 5


def test_a_reporter_that_is_killed_leaves_all_reports_before(run: Path, saved: Path) -> None:
    report({"loss": 1}, saved)
    kill = "import os, signal\n" + "def dies(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
    for where in ("os.rename", "shutil.copytree", "run_folder.LocalStorage.create"):
        script = f"{kill}import shutil\nfrom tfdist.jobs.reporting import run_folder\n"
        script += f"from tfdist.engines.ray import report\n{where} = dies\nreport({{'loss': 2}}, {str(saved)!r})\n"
        assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == -9
        result = Result.from_path(run)
        assert ([one["loss"] for one in result.history], len(result.best_checkpoints)) == ([1], 1)
    report({"loss": 3}, saved)
    assert len([one for one in run.iterdir() if "checkpoint" in one.name]) == 2
    assert len(Result.from_path(run).best_checkpoints) == 2


def test_what_cannot_be_reported(run: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thing = object()
    for metrics, name, received in (
        ([1], "metrics", "[1]"),
        ({"a": thing}, "metrics['a']", repr(thing)),
        ({"a": {"b": [1, 1j]}}, "metrics['a']['b'][1]", "1j"),
        ({1: 2}, "a name in metrics", "1"),
    ):
        with refused(ConfigTypeError, name=name, received=received):
            report(metrics)  # type: ignore[arg-type]
    with refused(ConfigError, name="metrics", received="timestamp"):
        report({"timestamp": 1})
    with refused(ConfigTypeError, name="checkpoint", received=3):
        report({}, 3)
    for missing in (run / "none", run.parent):  # the second has the folder of the run in it
        with refused(ConfigError, name="checkpoint", path=missing):
            report({}, missing)
    monkeypatch.setenv("TFDIST_WORKERS", "127.0.0.1:1,127.0.0.1:2")
    monkeypatch.setenv("TFDIST_WORKER_INDEX", "1")
    report({"loss": 1})
    with refused(ConfigError, name="checkpoint", workers=(1,)):
        report({}, saved)
    monkeypatch.setenv("TFDIST_WORKER_INDEX", "0")
    assert Result.from_path(run).history == []
    (run / ".run").write_text("another's")
    with refused(ConfigError, name="storage_path", path=run):
        report({})
    monkeypatch.delenv(REPORTS.name)
    with refused(ConfigError, name="run_config"):
        report({})


def test_one_job_reports_to_a_folder(run: Path) -> None:
    def fit(**options: Any) -> None:
        Trainer(train_fn=print, run_config=RunConfig(**options)).fit()

    with refused(ConfigError, path=run):
        fit(storage_path=str(run.parent), name="one")
    other = run.parent / "two"
    other.mkdir()
    (other / "result.json").write_text('{"a": 1}\n[2]\n')
    with refused(CorruptDataError, path=other / "result.json", received="[2]", mentions=["line 2"]):
        fit(storage_path=str(run.parent), name="two")
    with refused(ConfigError, name="storage_path", received="'s3://bucket/runs'"):
        fit(storage_path="s3://bucket/runs")
    with refused(ConfigError, name="path", path=run / "none"):
        Result.from_path(run / "none")
    with refused(ConfigTypeError, name="run_config"):
        Trainer(train_fn=print, run_config={"name": "a"}).fit()
    with refused(ConfigError, name="num_to_keep", received=0):
        CheckpointConfig(num_to_keep=0)


def test_a_full_disk_leaves_the_reports_before(run: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report({"loss": 1})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copytree", full)
        with refused(StorageError, path=run) as caught:
            report({"loss": 2}, saved)
        assert caught.value.errno == errno.ENOSPC
    report({"loss": 3}, saved)
    assert [one["loss"] for one in Result.from_path(run).history] == [1, 3]
    assert not [one for one in run.iterdir() if one.name.startswith(".checkpoint")]
    assert json.loads((run / "result.json").read_text().splitlines()[1])["checkpoint_dir_name"] == "checkpoint_000000"
