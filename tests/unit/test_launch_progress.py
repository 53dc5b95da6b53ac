"""The page that workers and the agent share: what is written is read, and what is no page is refused."""

import contextlib
import json
import signal
import threading
import time
from pathlib import Path

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.hold import Position, Standing
from tfdist.launch.progress import Page, Phase, Reporter


@pytest.fixture
def page(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Page(tmp_path / "page", 3)
    yield made
    made.close()
    assert not made.path.exists()


def test_nobody_has_said_anything(page: Page) -> None:
    said = page.read(2)
    assert (said.pid, said.phase, said.position) == (0, Phase.STARTING, Position(tick=-1, standing=Standing.BEHIND))
    assert (said.ticked, said.resumed, said.saved, said.leaves, said.source) == (None, None, None, False, "")


def test_what_is_written_is_read_and_by_nobody_else(page: Page) -> None:
    before, reporter = time.monotonic(), Reporter(page.path, 1)
    reporter.phase(Phase.STEPPING)
    assert not reporter.begins(0)
    assert page.read(1).ticked is None
    reporter.ends(0)
    with reporter.inside(Phase.SAVING):
        assert page.read(1).phase is Phase.SAVING
        reporter.saved(0)
    reporter.resumed(10**15, "über das Gedächtnis")
    assert page.read(1).done is None
    reporter.done(10**15 + 7)
    assert reporter.leaves()
    said = page.read(1)
    assert (said.phase, said.position) == (Phase.STEPPING, Position(tick=0, standing=Standing.BEHIND))
    assert (said.saved, said.resumed, said.source) == (0, 10**15, "über das Gedächtnis")
    assert said.done == 10**15 + 7
    assert said.leaves
    assert said.ticked is not None
    assert before <= said.ticked <= said.changed <= time.monotonic()
    assert 0 < said.step_seconds < 10
    for other in (0, 2):
        assert page.read(other).pid == 0
    page.end()
    assert not reporter.leaves(), "the agent ends the job itself"
    reporter.close()


def test_a_long_source_is_cut(page: Page) -> None:
    reporter = Reporter(page.path, 0)
    reporter.resumed(1, "x" * 100 + "the end")
    assert page.read(0).source.endswith("the end")
    reporter.close()


def test_from_the_environment(page: Page, tmp_path: Path) -> None:
    variables = tmp_path / "environment.json"
    environ = {
        "TFDIST_PROGRESS_FILE": str(page.path),
        "TFDIST_WORKER_INDEX": "2",
        "TFDIST_ENVIRONMENT_FILE": str(variables),
        "TF_NUM_INTRAOP_THREADS": "1",
        "SECRET": "x",
    }
    reporter = Reporter.from_environment(environ)
    assert reporter is not None
    reporter.close()
    assert page.read(2).pid
    assert json.loads(variables.read_text()) == {"TF_NUM_INTRAOP_THREADS": "1"}
    assert Reporter.from_environment({}) is None
    assert Reporter.from_environment({**environ, "TFDIST_PROGRESS_FILE": str(tmp_path / "gone")}) is None


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\0" * 4096])
def test_what_is_no_page(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no progress page"):
        Reporter(path, 0)


@pytest.mark.parametrize("worker", [3, -1, 10**6])
def test_a_worker_without_a_record(page: Page, worker: int) -> None:
    with pytest.raises(ConfigError, match=f"for worker {worker}"):
        Reporter(page.path, worker)


def test_a_handler_may_say_that_a_worker_leaves(page: Page) -> None:
    reporter = Reporter(page.path, 0)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: reporter.leaves() and None)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert page.read(0).leaves
    reporter.close()


def test_a_reserve_waits_for_its_turn(tmp_path: Path) -> None:
    with contextlib.closing(Page(tmp_path / "reserve", 2, reserve=True)) as page:
        reporter, went = Reporter(page.path, 0), threading.Event()

        def work() -> None:
            reporter.stand_by()
            went.set()

        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + 20
        while page.read(0).phase is not Phase.RESERVE and time.monotonic() < deadline:
            time.sleep(0.001)
        assert page.read(0).phase is Phase.RESERVE
        assert not went.is_set()
        before = time.monotonic()
        page.take_over()
        thread.join(20)
        assert went.is_set()
        assert page.read(0).phase is Phase.STARTING
        assert page.read(0).changed >= before, "the wait is no time that it took"
        assert page.read(1).pid == 0
        reporter.stand_by()  # it takes part from now on
        reporter.close()
