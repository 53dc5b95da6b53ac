"""Looking for alerts ends neither a job nor a training, whatever fails."""

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from tfdist.callbacks import single_process_job
from tfdist.callbacks.single_process_job import Alerting
from tfdist.cluster.job_files import steps_folder
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import EventFile
from tfdist.monitor.verdict import job_bound
from tfdist.waiting import Flag


def fail(*arguments: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def test_an_agent_outlives_records_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("recent", "verdict_of"):
        monkeypatch.setattr(job_bound, name, fail)
    steps_folder(tmp_path, 0).mkdir()
    said: list[str] = []
    monitoring = Monitoring(tmp_path, EventFile(None, "job"), said.append, Flag())
    monitoring.look()
    assert len(said) == 1
    monitoring.tell()
    monitoring.tell()
    assert len(said) == 2  # each kind of failure once


def test_a_callback_outlives_records_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(single_process_job, "recent", fail)
    monkeypatch.setattr(single_process_job, "_SECONDS", 0.001)
    alerting = Alerting(steps_folder(tmp_path, 0), lambda alert: None)
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        while not caplog.records:
            alerting._thread.join(0.01)
            assert alerting._thread.is_alive()
        alerting.end()
    assert len(caplog.records) == 1
