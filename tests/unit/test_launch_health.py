"""`tfdist health`: who stands still is named, by pages that were really written; where no job runs nobody is."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdist.cli import main as cli
from tfdist.launch import health
from tfdist.launch.plan import progress_file
from tfdist.launch.progress import Page, Phase, Reporter


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    folder = tmp_path / "tfdist-job-x"
    folder.mkdir()
    made = Page(progress_file(folder, restarts=3), 3)
    yield made
    made.close()


def test_a_worker_that_stands_still_is_named_and_no_other(page: Page, tmp_path: Path) -> None:
    reporters = [Reporter(page.path, worker) for worker in (0, 1)]  # worker 2 has said nothing yet
    reporters[0].phase(Phase.ENDED)
    reporters[1].begins(0)
    reporters[1].phase(Phase.SAVING)
    pages, now = health.observe([tmp_path]), time.monotonic()
    assert list(pages) == [str(page.path)]
    assert health.complaints(pages, now=now, stall_seconds=60.0) == ()
    (said,) = health.complaints(pages, now=now + 90.0, stall_seconds=60.0)
    assert said == f"worker 1 ({page.path}) has been saving for 90 s"
    for reporter in reporters:
        reporter.close()


def test_what_is_no_page_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "tfdist-other").mkdir()
    (tmp_path / "tfdist-other" / "progress-0").write_bytes(b"something else")
    assert health.observe([tmp_path, tmp_path / "missing"]) == {}


def test_the_command(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FOLDER", tmp_path)
    monkeypatch.setattr(health.tempfile, "gettempdir", lambda: str(tmp_path))
    reporter = Reporter(page.path, 1)
    reporter.begins(0)
    fine = CliRunner().invoke(cli.main, ["health"])
    assert (fine.exit_code, fine.output) == (0, "1 jobs, 3 workers, none stands still\n")
    stalled = CliRunner().invoke(cli.main, ["health", "--stall-seconds", "1e-9"])
    assert stalled.exit_code == 1
    assert "worker 1" in stalled.output
    assert CliRunner().invoke(cli.main, ["health", "--stall-seconds", "0"]).exit_code == 2
    reporter.close()
