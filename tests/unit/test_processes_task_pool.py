"""A pool of processes for any task: results, errors with their origin, ends of processes, and nothing that stays."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.refusals import refused
from tfdist.errors import TfdistError
from tfdist.processes.pool import task_pool
from tfdist.processes.pool.task_pool import TaskPool, in_processes

SCRIPT = """
import sys
print("the script")
from tfdist.processes.pool.task_pool import in_processes
class Number(int): pass
def halved(number): return Number(number) // 2
print(sorted(in_processes(halved, [(7,), (9,)], 2)), sys.modules.keys() & {"tensorflow", "keras"})
"""


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "task_worker" in " ".join(child.cmdline())]


def test_tasks_are_taken_a_few_at_a_time() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[tuple[int, int]]:
        for number in range(40):
            taken.append(number)
            yield number, 7

    results = in_processes(divmod, tasks(), 2)
    found = [next(results) for _ in range(3)]
    assert len(taken) <= 3 + 2 * (1 + task_pool._AHEAD)
    assert sorted([*found, *results]) == [divmod(number, 7) for number in range(40)]


def test_what_a_script_defines_runs_without_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("the script\n[3, 4] set()\n", "")


def test_results_come_in_order_and_the_first_error_ends_all() -> None:
    pool = TaskPool(2)
    tasks = [(number, (number, 3)) for number in range(20)]
    assert list(pool.each(divmod, tasks)) == [(number, divmod(number, 3)) for number in range(20)]
    assert (pool.ask(pow, 2, 5), len(children())) == (32, 2)
    pool.close()
    assert not children()
    with pytest.raises(ZeroDivisionError) as caught:
        list(in_processes(divmod, [(7, 2), (1, 0)], 2))
    assert "task_worker.py" in str(caught.value.__cause__)
    assert not children()


def test_a_process_that_is_killed_is_told() -> None:
    pool = TaskPool(1)
    with refused(TfdistError, mentions=["SIGKILL", "fewer processes"]):
        pool.ask(_die)
    with refused(TfdistError, mentions=["SIGKILL"]):
        pool.ask(pow, 2, 5)
    pool.close(at_once=True)
    assert not children()


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    pool = TaskPool(1)
    with pytest.raises(RuntimeError, match="ValueError: with a lock"):
        pool.ask(_fail)
    with pytest.raises(RuntimeError, match="PlaceError: 3 of 7"):
        pool.ask(_fail_at_a_place)
    assert pool.ask(pow, 2, 5) == 32
    pool.close()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class PlaceError(Exception):
    """An error that is made of more than what it keeps as its arguments."""

    def __init__(self, place: int, places: int) -> None:
        super().__init__(f"{place} of {places}")


def _fail_at_a_place() -> None:
    raise PlaceError(3, 7)


def _fail() -> Any:
    import threading

    error = ValueError("with a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error
