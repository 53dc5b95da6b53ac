"""Tasks that a chief has started for itself end with it, whichever thread starts one again meanwhile."""

import subprocess
import threading
from typing import Any

import pytest

from tfdist.jobs.placement.local_tasks import LocalTasks


class Process:
    """An ended process, or one that survives everything."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.is_killed = False
        self._is_held = is_held

    def poll(self) -> int:
        return 1

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, timeout: float) -> int:
        if self._is_held:
            raise subprocess.TimeoutExpired("held", timeout)
        return -9


def test_a_task_that_is_revived_while_all_end_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Process] = []

    def start(*arguments: Any, **options: Any) -> Process:
        if made:  # the first is revived while another thread ends all
            ending.start()
            ending.join(0.2)  # it has to wait for this one
        made.append(Process())
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    tasks = LocalTasks(workers=1, servers=0)
    ending = threading.Thread(target=tasks.end)
    tasks.revive("worker", 0)
    ending.join(60.0)
    assert not ending.is_alive()
    assert len(made) == 2
    assert made[-1].is_killed
    tasks.revive("worker", 0)
    assert len(made) == 2


def test_a_task_that_the_kernel_holds_keeps_no_other_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([Process(is_held=True), Process()])
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: next(made))
    tasks = LocalTasks(workers=1, servers=1)
    tasks.end()
    assert tasks._log.closed
