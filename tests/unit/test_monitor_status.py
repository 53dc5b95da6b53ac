"""The status table: what a worker writes as its steps go on is read by the agent, and what is no table is refused."""

import contextlib
import json
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.monitor.phases import Activity, Kind, Phase
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.status import StatusTable, StepPosition, StepState
from tfdist.monitor.step_clock import StepClock


@pytest.fixture
def table(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = StatusTable(tmp_path / "table", 3)
    yield made
    made.close()
    assert not made.path.exists()


def test_nobody_has_said_anything(table: StatusTable) -> None:
    said = table.read(2)
    assert (said.pid, said.activity) == (0, Activity.STARTING)
    assert said.position == StepPosition(step=-1, state=StepState.DONE)
    assert (said.first_step_ended, said.resumed, said.saved, said.leaves, said.source) == (None, None, None, False, "")


def test_what_is_written_is_read_and_by_nobody_else(table: StatusTable) -> None:
    before, reporter = time.monotonic(), StatusReporter(table.path, 1)
    clock = StepClock([reporter])
    clock.begin(Kind.TRAIN)
    assert table.read(1).first_step_ended is None
    assert table.read(1).activity is Activity.STEPPING
    assert table.read(1).position == StepPosition(step=0, state=StepState.RUNNING)
    clock.end()
    with clock.doing(Activity.SAVING):
        assert table.read(1).activity is Activity.SAVING
        reporter.saved(0)
    reporter.resumed(10**15, "über das Gedächtnis")
    assert table.read(1).done is None
    reporter.done(10**15 + 7)
    assert reporter.leaves()
    said = table.read(1)
    assert (said.activity, said.position) == (Activity.BETWEEN, StepPosition(step=0, state=StepState.DONE))
    assert (said.saved, said.resumed, said.source) == (0, 10**15, "über das Gedächtnis")
    assert said.done == 10**15 + 7
    assert said.leaves
    assert said.first_step_ended is not None
    assert before <= said.first_step_ended <= said.changed <= time.monotonic()
    assert 0 < said.step_seconds <= time.monotonic() - before
    for other in (0, 2):
        assert table.read(other).pid == 0
    table.end()
    assert not reporter.leaves(), "the agent ends the job itself"
    reporter.close()


def test_the_time_of_callbacks_is_that_of_no_step(table: StatusTable) -> None:
    now = [100.0]
    reporter = StatusReporter(table.path, 1)
    clock = StepClock([reporter], now=lambda: int(now[0] * 1e9))
    for before, within in ((20.0, 3.0), (0.0, 4.0)):
        clock.begin(Kind.TRAIN)
        clock.pause()
        assert table.read(1).activity is Activity.BETWEEN
        now[0] += before
        clock.begin(Kind.TRAIN)
        assert table.read(1).activity is Activity.STEPPING
        now[0] += within
        clock.end()
        assert (table.read(1).activity, table.read(1).step_seconds) == (Activity.BETWEEN, within)
    clock.begin(Kind.TRAIN)
    clock.pause()
    now[0] += 50.0
    clock.end_paused()  # a step that nobody has seen
    assert (table.read(1).activity, table.read(1).step_seconds) == (Activity.BETWEEN, 0.0)
    assert table.read(1).ended == 3
    reporter.close()


def test_steps_of_several_threads_are_running_until_the_last_has_ended(table: StatusTable) -> None:
    reporter, positions = StatusReporter(table.path, 0), []
    clock = StepClock([reporter])

    def train() -> None:
        with clock.step(Kind.TRAIN, Phase.EXECUTE):
            positions.append(table.read(0).position)

    with clock.step(Kind.TRAIN, Phase.EXECUTE):
        other = threading.Thread(target=train)
        other.start()
        other.join()
        positions.append(table.read(0).position)
    assert positions == [StepPosition(step=1, state=StepState.RUNNING)] * 2
    assert table.read(0).position.state is StepState.DONE
    assert (table.read(0).ended, table.read(0).activity) == (2, Activity.BETWEEN)
    reporter.close()


def test_a_long_source_is_cut(table: StatusTable) -> None:
    reporter = StatusReporter(table.path, 0)
    reporter.resumed(1, "x" * 100 + "the end")
    assert table.read(0).source.endswith("the end")
    reporter.close()


def test_warnings_of_any_length_are_read_once(tmp_path: Path) -> None:
    table = StatusTable(tmp_path / "table", 3)
    reporters = [StatusReporter(table.path, worker) for worker in (0, 2)]
    clocks = [StepClock([reporter]) for reporter in reporters]
    long = "über " * 1000
    clocks[0].warn(long)
    clocks[1].warn("of\ntwo lines")
    assert table.new_warnings() == [long, "of two lines"]
    assert table.new_warnings() == []
    clocks[1].warn("and another")
    assert table.new_warnings() == ["and another"]
    for reporter in reporters:
        reporter.close()
    table.close()
    assert list(tmp_path.iterdir()) == []


def test_from_the_environment(table: StatusTable, tmp_path: Path) -> None:
    variables = tmp_path / "environment.json"
    environ = {
        "TFDIST_PROGRESS_FILE": str(table.path),
        "TFDIST_WORKER_INDEX": "2",
        "TFDIST_ENVIRONMENT_FILE": str(variables),
        "TF_NUM_INTRAOP_THREADS": "1",
        "SECRET": "x",
    }
    reporter = StatusReporter.from_environment(environ)
    assert reporter is not None
    reporter.close()
    assert table.read(2).pid
    assert json.loads(variables.read_text()) == {"TF_NUM_INTRAOP_THREADS": "1"}
    assert StatusReporter.from_environment({}) is None
    assert StatusReporter.from_environment({**environ, "TFDIST_PROGRESS_FILE": str(tmp_path / "gone")}) is None


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\0" * 4096])
def test_what_is_no_table(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(content)
    with refused(ConfigError, name="TFDIST_PROGRESS_FILE", path=path):
        StatusReporter(path, 0)


@pytest.mark.parametrize("worker", [3, -1, 10**6])
def test_a_worker_without_a_record(table: StatusTable, worker: int) -> None:
    with refused(ConfigError, path=table.path, workers=[worker]):
        StatusReporter(table.path, worker)


def test_a_handler_may_say_that_a_worker_leaves(table: StatusTable) -> None:
    reporter = StatusReporter(table.path, 0)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: reporter.leaves() and None)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert table.read(0).leaves
    reporter.close()


def test_a_reserve_waits_for_its_turn(tmp_path: Path) -> None:
    with contextlib.closing(StatusTable(tmp_path / "reserve", 2, reserve=True)) as table:
        reporter, went = StatusReporter(table.path, 0), threading.Event()

        def work() -> None:
            reporter.stand_by()
            went.set()

        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + 200
        while table.read(0).activity is not Activity.RESERVE and time.monotonic() < deadline:
            time.sleep(0.001)
        assert table.read(0).activity is Activity.RESERVE
        assert not went.is_set()
        before = time.monotonic()
        table.take_over()
        thread.join(200)
        assert went.is_set()
        assert table.read(0).activity is Activity.STARTING
        assert table.read(0).changed >= before, "the wait is no time that it took"
        assert table.read(1).pid == 0
        reporter.stand_by()  # it takes part from now on
        reporter.close()
