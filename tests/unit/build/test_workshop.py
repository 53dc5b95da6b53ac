"""Programs of a build: their lines, their failures, their deadline, and that nothing of them stays."""

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.refusals import refused
from tfdist.cache import remove_stale
from tfdist.errors import ConfigError, DeadlineError, TfdistError
from tfdist_horovod.program import Runner
from tfdist_horovod.workspace import workshop

DEADLINE_SECONDS = 200.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "the.log"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run(runner: Runner, program: str, *, timeout_seconds: float = DEADLINE_SECONDS) -> list[str]:
    lines: list[str] = []
    runner.run(
        [sys.executable, "-c", program],
        environ=os.environ,
        cwd=runner.guard.directory,
        timeout_seconds=timeout_seconds,
        on_line=lines.append,
    )
    return lines


def test_success_leaves_nothing(work: Path, log: Path) -> None:
    with workshop(work, log, keep_log=False, verb="built") as runner:
        assert run(runner, "import sys; print('one'); sys.stderr.write('two\\n'); open('file', 'w')") == ["one", "two"]
        assert (runner.guard.directory / "file").exists()
        assert "one\ntwo\n" in log.read_text()
    assert list(work.iterdir()) == []
    assert not log.exists()


def test_a_log_that_is_asked_for_stays(work: Path, log: Path) -> None:
    with workshop(work, log, keep_log=True, verb="built") as runner:
        run(runner, "print('one')")
    assert "one" in log.read_text()


def test_a_failure_is_its_cause_and_the_log_stays(work: Path, log: Path) -> None:
    program = "print('/w/a.cc:1:2: error: no such thing'); raise SystemExit(3)"
    with (
        refused(TfdistError, path=log, mentions=["built", "/w/a.cc:1", "no such thing"]) as caught,
        workshop(work, log, keep_log=False, verb="built") as runner,
    ):
        run(runner, program)
    assert str(caught.value).endswith(str(log))
    assert "no such thing" in log.read_text()
    assert list(work.iterdir()) == []


def test_a_program_that_cannot_be_started(work: Path, log: Path) -> None:
    with (
        refused(TfdistError, path=log, mentions=["/no/program"]),
        workshop(work, log, keep_log=False, verb="built") as runner,
    ):
        runner.run(["/no/program"], environ={}, cwd=work, timeout_seconds=DEADLINE_SECONDS)


def test_a_deadline_ends_a_program_and_what_it_started(work: Path, log: Path) -> None:
    begun = time.monotonic()
    # the second one is in no group of the program's, and holds its output open; a shell says so sooner than Python
    command = ["sh", "-c", "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait"]
    with (
        refused(DeadlineError, path=log, mentions=["2 s"]),
        workshop(work, log, keep_log=False, verb="built") as runner,
    ):
        runner.run(command, environ=os.environ, cwd=runner.guard.directory, timeout_seconds=2)
    children = [int(line) for line in log.read_text().splitlines() if line.isdecimal()]
    assert len(children) == 2
    assert time.monotonic() < begun + 50, "their output was waited for"
    while any(map(alive, children)):  # they have been killed, and nobody waits for them
        assert time.monotonic() < begun + DEADLINE_SECONDS, "one is left"
        time.sleep(0.01)


def test_an_interrupt_ends_a_program_and_leaves_nothing(work: Path, log: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    program = "import time; print('started', flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt), workshop(work, log, keep_log=False, verb="built") as runner:
        runner.run(
            [sys.executable, "-c", program],
            environ=os.environ,
            cwd=work,
            timeout_seconds=DEADLINE_SECONDS,
            on_line=interrupt,
        )
    assert list(work.iterdir()) == []
    assert not log.exists()


def test_a_log_that_cannot_be_written(work: Path, tmp_path: Path) -> None:
    with (
        refused(ConfigError, name="--log", path=tmp_path / "nowhere" / "log"),
        workshop(work, tmp_path / "nowhere" / "log", keep_log=True, verb="built"),
    ):
        pytest.fail("it went on without a log")


def test_only_what_is_a_day_old_is_stale(work: Path) -> None:
    for name, age in (("old", 25), ("new", 23)):
        (work / name).mkdir()
        then = time.time() - age * 3600
        (work / f"{name} file").write_text("")
        for path in (work / name, work / f"{name} file"):
            os.utime(path, (then, then))
    remove_stale(work)
    assert sorted(path.name for path in work.iterdir()) == ["new", "new file"]
