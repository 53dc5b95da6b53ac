"""The status table: shared memory in which each worker reports its progress, and the agent asks workers to stop.

The agent makes a small file, which all map. They write one aligned word of eight bytes at a time, so no half-written
number is ever read. No call waits. From word HEADER on, each worker has a record (`Word`), which `reporter` writes; it
appends warnings to a file next to the table. Loads no TensorFlow.
"""

import contextlib
import mmap
import os
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.monitor.phases import Activity
from tfdist.variables import PROGRESS_FILE


class StepState(IntEnum):
    DONE = 0  # it has ended the step, and whether it will start another is not known
    RUNNING = 1  # it has started the step
    HELD = 2  # it has not started the step, and waits for the target


@dataclass(frozen=True, kw_only=True)
class StepPosition:
    """The number of a worker's step (-1 before the first), which is counted alike on all workers, and its state."""

    step: int
    state: StepState

    @property
    def started(self) -> int:
        """The largest step that the worker has really started."""
        return self.step - 1 if self.state is StepState.HELD else self.step


def target_of(positions: Iterable[StepPosition]) -> int | None:
    """Return the last step that all workers run; None while it is unknown, or without workers.

    After the agent's request, every worker that is about to start a step holds, or starts it because it looked before
    the request. A worker that is HELD or RUNNING is known; one that is DONE may have looked already. Once all are
    known, the target is the largest started step. No wait is endless: all workers start the steps up to it, and the
    agent has a deadline for the others.
    """
    known = tuple(positions)
    if not known or any(position.state is StepState.DONE for position in known):
        return None
    return max(position.started for position in known)


HALTED = 75  # exit code of a worker that has stopped after a request, and has saved: EX_TEMPFAIL
SETTLE_SECONDS = 0.001  # after which a word written by one process is seen by every other
# Words of the header after what the file is and the number of workers: the number of the request to halt, or 0; the
# last step before a halt, + 2, or 0; all are to end at once; these workers are in reserve; a chief's, never halted
REQUEST, TARGET, ENDING, RESERVE, CHIEF = 2, 3, 4, 5, 6
HEADER, RECORD = 8, 24  # words
SOURCE_BYTES = 64

_MAGIC = 0x74666470_00000001  # "tfdp", layout 1


class Word(IntEnum):
    """The meaning of each word of a worker's record; times are of the machine's monotonic clock."""

    PID = 0
    ACTIVITY = 1
    POSITION = 2  # 4 * (step + 1) + its state, in one word: both are read together
    CHANGED = 3  # clock of the last change of activity or position, in ns
    STEP = 4  # how long the last step took, in ns
    FIRST_STEP = 5  # clock of the first end of a step, in ns
    RESUMED = 6  # step + 1
    DONE = 7  # step + 1
    SAVED = 8  # step + 1
    LEAVES = 9
    HELD_FOR = 10  # number of the request for which it holds, or held
    ENDED = 11  # how many steps have ended
    STATES = 12  # number of changes of the states that it holds in memory: one was added, or all were dropped
    WARNINGS = 13  # how many lines it has written in the file of its warnings
    SOURCE = 16  # and the seven after it: text


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    pid: int  # 0 before the first report
    activity: Activity
    position: StepPosition
    changed: float  # clock time of the last change of activity or position, in seconds; 0 before
    step_seconds: float  # of its last step; 0 when none has ended
    ended: int  # number of ended steps
    first_step_ended: float | None  # clock time, or None
    resumed: int | None  # steps that it need not repeat, or None when it has restored nothing
    source: str  # of the restored state
    done: int | None  # steps done, in earlier starts too, or None when unknown
    saved: int | None  # steps in its newest backup, or None
    leaves: bool  # it was asked to end


class StatusTable:
    def __init__(self, path: Path, workers: int, *, reserve: bool = False, chief: bool = False) -> None:
        words = bytearray(8 * (HEADER + workers * RECORD))
        with memoryview(words).cast("q") as view:
            view[0], view[1], view[RESERVE], view[CHIEF] = _MAGIC, workers, reserve, chief
        with open(path, "xb") as file:
            file.write(words)
        self._words = Words(path, must_have=workers - 1)
        self._requests = 0
        self._warnings = [(0, 0)] * workers  # how many of each were returned, and their bytes
        self.path = path
        self.workers = workers

    def read(self, worker: int) -> WorkerStatus:
        return _said(self._words.view, worker)

    def record(self, worker: int) -> list[int]:
        """Return the words of a worker's record, for `status_of`."""
        start = HEADER + worker * RECORD
        return self._words.view[start : start + RECORD].tolist()

    def new_warnings(self) -> list[str]:
        """Return the workers' warnings since the last call."""
        found = []
        for worker, (known, begin) in enumerate(self._warnings):
            count = self._words.view[HEADER + worker * RECORD + Word.WARNINGS]
            if count > known:
                with open(warnings_file(self.path, worker), "rb") as file:
                    file.seek(begin)
                    lines = [file.readline() for _ in range(count - known)]
                found += [line.decode(errors="replace").rstrip("\n") for line in lines]
                self._warnings[worker] = count, begin + sum(map(len, lines))
        return found

    def show(self, worker: int, words: Sequence[int]) -> None:
        """Copy the record of a worker on another host into this table."""
        start = HEADER + worker * RECORD
        self._words.view[start : start + RECORD] = memoryview(array("q", words))

    @property
    def request(self) -> int:
        """The number of the request to halt that is in force, or 0."""
        return self._words.view[REQUEST]

    def ask_to_halt(self) -> None:
        """Ask all workers to hold before their next step; their answers are complete SETTLE_SECONDS later."""
        self._requests += 1
        self._words.view[REQUEST] = self._requests

    def take_back(self) -> None:
        """Release the held workers; allowed only while there is no target."""
        assert not self._words.view[TARGET]
        self._words.view[REQUEST] = 0

    def set_target(self, step: int) -> None:
        """Let the workers run up to this step, and stop before the next one."""
        self._words.view[TARGET] = step + 2

    def take_over(self) -> None:
        now = time.monotonic_ns()
        for worker in range(self.workers):  # how long they have waited is nothing that they did
            self._words.view[HEADER + worker * RECORD + Word.CHANGED] = now
        self._words.view[RESERVE] = 0

    def end(self) -> None:
        self._words.view[ENDING] = 1

    def close(self) -> None:
        self._words.close()
        self.path.unlink(missing_ok=True)
        for worker in range(self.workers):
            warnings_file(self.path, worker).unlink(missing_ok=True)


def warnings_file(table: Path, worker: int) -> Path:
    """Return the file to which a worker writes its warnings, one per line, given the path of the status table."""
    return table.with_name(f"warnings-{worker}-of-{table.name}")


def read_all(path: str | os.PathLike[str]) -> tuple[WorkerStatus, ...]:
    with contextlib.closing(Words(path, must_have=0)) as words:
        return tuple(_said(words.view, worker) for worker in range(words.view[1]))


def is_in_reserve(path: str | os.PathLike[str]) -> bool:
    """Return whether the workers of another process's table wait in reserve."""
    with contextlib.closing(Words(path, must_have=0)) as words:
        return bool(words.view[RESERVE])


def _said(table: "memoryview[int]", worker: int) -> WorkerStatus:
    start = HEADER + worker * RECORD
    return status_of(table[start : start + RECORD].tolist(), table[REQUEST])


def status_of(words: Sequence[int], request: int) -> WorkerStatus:
    step, state = divmod(words[Word.POSITION], 4)
    if state == StepState.HELD and words[Word.HELD_FOR] != request:
        step, state = step - 1, StepState.DONE  # it held for a request that was taken back, and continues
    text = b"".join(word.to_bytes(8, "little", signed=True) for word in words[Word.SOURCE :])
    return WorkerStatus(
        pid=words[Word.PID],
        activity=Activity(words[Word.ACTIVITY]),
        position=StepPosition(step=step - 1, state=StepState(state)),
        changed=words[Word.CHANGED] / 1e9,
        step_seconds=words[Word.STEP] / 1e9,
        ended=words[Word.ENDED],
        first_step_ended=words[Word.FIRST_STEP] / 1e9 if words[Word.FIRST_STEP] else None,
        resumed=words[Word.RESUMED] - 1 if words[Word.RESUMED] else None,
        source=text.rstrip(b"\0").decode(errors="replace"),
        done=words[Word.DONE] - 1 if words[Word.DONE] else None,
        saved=words[Word.SAVED] - 1 if words[Word.SAVED] else None,
        leaves=bool(words[Word.LEAVES]),
    )


class Words:
    """A mapped file as words, `view`."""

    def __init__(self, path: str | os.PathLike[str], *, must_have: int) -> None:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if must_have < 0 or size % 8 or size < 8 * (HEADER + (must_have + 1) * RECORD):
                raise _no_table(path, must_have)
            self._mapped = mmap.mmap(file.fileno(), 0)
        self.view = memoryview(self._mapped).cast("q")
        if self.view[0] != _MAGIC or must_have >= self.view[1]:
            self.close()
            raise _no_table(path, must_have)

    def close(self) -> None:
        self.view.release()
        self._mapped.close()


def _no_table(path: str | os.PathLike[str], worker: int) -> ConfigError:
    return ConfigError(
        f"{os.fspath(path)} (TFDIST_PROGRESS_FILE) is not a status table with a record for worker {worker} "
        "(TFDIST_WORKER_INDEX). `tfdist run` of the same version sets both; unset them elsewhere.",
        name=PROGRESS_FILE.name,
        path=path,
        workers=[worker],
    )
