"""Workers in reserve: when they are told to go on, and when they are given up."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.cluster import TaskId
from tfdist.jobs.agent.shared_job import Job, Standby
from tfdist.jobs.output.output_forwarder import screen
from tfdist.jobs.placement.local_placement import LocalPlacement
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.monitor.status import StatusTable
from tfdist.processes.job_resources import guarded

WORKERS = 2


class Counting(StatusTable):
    """A status table that counts how often its workers are told to go on."""

    told = 0

    def take_over(self) -> None:
        self.told += 1
        super().take_over()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Standby, Counting]]:
    """A reserve of two processes that sleep, and their table."""
    tables: list[Counting] = []

    def plan() -> tuple[Sequence[WorkerSpec], Any]:
        tables.append(Counting(tmp_path / "table", WORKERS, reserve=True))
        tasks = [TaskId(type="worker", index=index) for index in range(WORKERS)]
        specs = [
            WorkerSpec(index=task.index, task=task, argv=("sleep", "1000"), error_file=tmp_path / f"{task.index}.json")
            for task in tasks
        ]
        return specs, tables[-1]

    factory: Any = SimpleNamespace(waiting=WORKERS)
    with guarded("standby-of-a-test", parent=tmp_path) as guard:
        standby = Standby(LocalPlacement(guard), screen([]), factory, verbose=False)
        with contextlib.closing(standby):
            standby.tend(WORKERS, plan)
            yield standby, tables[0]


def test_without_memory_for_it_there_is_none(made: tuple[Standby, Counting]) -> None:
    def plan() -> tuple[Sequence[WorkerSpec], Any]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    standby, _ = made
    assert standby.take(0) is None  # it may have another one
    standby.tend(WORKERS, plan)
    assert (standby.is_starting, standby.is_ready) == (False, False)


def test_it_goes_on_before_it_is_taken_and_is_told_once(made: tuple[Standby, Counting]) -> None:
    standby, table = made
    standby.go_on(WORKERS)
    assert table.told == 1
    reserve = standby.take(WORKERS)
    assert reserve is not None
    with reserve.held:
        standby.admit(reserve, SimpleQueue())
        assert table.told == 1


def test_it_is_told_when_it_is_admitted_if_not_before(made: tuple[Standby, Counting]) -> None:
    standby, table = made
    reserve = standby.take(WORKERS)
    assert reserve is not None
    assert table.told == 0
    with reserve.held:
        standby.admit(reserve, SimpleQueue())
        assert table.told == 1


def test_one_of_another_size_does_not_go_on(made: tuple[Standby, Counting]) -> None:
    standby, table = made
    standby.go_on(WORKERS + 1)
    assert table.told == 0
    assert standby.take(WORKERS + 1) is None
    assert standby.take(WORKERS) is None  # it was ended


def test_the_end_of_a_worker_that_has_gone_on_is_handed_on(made: tuple[Standby, Counting]) -> None:
    standby, _ = made
    standby.go_on(WORKERS)
    waiting = standby._reserve
    assert waiting is not None
    waiting.group.members[1].signal(9)
    assert waiting.group.members[1].wait(60) == -9
    reserve = standby.take(WORKERS)
    assert reserve is waiting
    events: SimpleQueue[Any] = SimpleQueue()
    with reserve.held:
        standby.admit(reserve, events)
        event = events.get(timeout=60)
        assert (event.worker, event.returncode) == (1, -9)


def test_one_that_has_lost_a_worker_does_not_go_on(made: tuple[Standby, Counting]) -> None:
    standby, table = made
    reserve = standby._reserve
    assert reserve is not None
    reserve.group.members[1].signal(9)
    assert reserve.group.members[1].wait(60) == -9
    standby.go_on(WORKERS)
    assert table.told == 0
    assert standby.take(WORKERS) is None


def test_the_steps_of_the_last_two_starts_are_kept(tmp_path: Path) -> None:
    config = LaunchConfig(target="t.py", max_restarts=9, monitor=True)
    with guarded("standby-of-a-test", parent=tmp_path) as guard:
        nothing: Any = None
        others = dict.fromkeys(("out", "events", "verbose", "reporter", "factory", "standby", "control"), nothing)
        job = Job(config=config, guard=guard, placement=LocalPlacement(guard), **others)
        for start in range(4):
            _, channel = job.plan(1, start)
            channel.close()
        assert sorted(path.name for path in guard.memory.glob("steps-*")) == ["steps-2", "steps-3"]
