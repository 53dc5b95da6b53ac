"""`tfdist health`: who stands still is named, by tables that were really written; where no job runs nobody is."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.refusals import absent
from tfdist.cli import main as cli
from tfdist.cluster.job_files import progress_file
from tfdist.jobs.agent import running_jobs
from tfdist.monitor.phases import Activity, Kind
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.status import StatusTable


@pytest.fixture
def table(tmp_path: Path) -> Iterator[StatusTable]:
    folder = tmp_path / "tfdist-job-x"
    folder.mkdir()
    made = StatusTable(progress_file(folder, restarts=3), 4)
    yield made
    made.close()


def test_a_worker_that_stands_still_is_named_and_no_other(table: StatusTable, tmp_path: Path) -> None:
    reporters = [StatusReporter(table.path, worker) for worker in (0, 1, 2)]  # worker 3 has said nothing yet
    reporters[0].on_activity(Activity.ENDED, time.monotonic_ns())
    reporters[2].on_activity(Activity.RESERVE, time.monotonic_ns())
    reporters[1].on_begin(0, Kind.TRAIN, time.monotonic_ns())
    reporters[1].on_activity(Activity.SAVING, time.monotonic_ns())
    pages, now = running_jobs.worker_pages([tmp_path]), time.monotonic()
    assert list(pages) == [str(table.path)]
    assert running_jobs.stalled_workers(pages, now=now, stall_seconds=60.0) == ()
    (said,) = running_jobs.stalled_workers(pages, now=now + 90.0, stall_seconds=60.0)
    assert not absent(said, "worker 1 ", str(table.path), "saving", "90 s")
    reporters[1].on_activity(Activity.RESERVE, time.monotonic_ns())  # until others fail
    pages, now = running_jobs.worker_pages([tmp_path]), time.monotonic()
    assert running_jobs.stalled_workers(pages, now=now + 90.0, stall_seconds=60.0) == ()
    for reporter in reporters:
        reporter.close()


def test_what_is_no_table_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "tfdist-other").mkdir()
    (tmp_path / "tfdist-other" / "progress-0").write_bytes(b"something else")
    assert running_jobs.worker_pages([tmp_path, tmp_path / "missing"]) == {}


def test_the_command(table: StatusTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_jobs, "MEMORY", tmp_path)
    monkeypatch.setattr(running_jobs.tempfile, "gettempdir", lambda: str(tmp_path))
    reporter = StatusReporter(table.path, 1)
    reporter.on_begin(0, Kind.TRAIN, time.monotonic_ns())
    standby = StatusTable(progress_file(table.path.parent, restarts=4), 1, reserve=True)
    fine = CliRunner().invoke(cli.main, ["health"])
    assert (fine.exit_code, absent(fine.output, "1 job,", "5 workers")) == (0, [])
    standby.close()
    stalled = CliRunner().invoke(cli.main, ["health", "--stall-seconds", "1e-9"])
    assert stalled.exit_code == 1
    assert "worker 1" in stalled.output
    assert CliRunner().invoke(cli.main, ["health", "--stall-seconds", "0"]).exit_code == 2
    reporter.close()
