"""The report of a worker's progress to the agent, through its record in the status table."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tfdist.monitor.observer import End, StepObserver
from tfdist.monitor.phases import Activity, Kind
from tfdist.monitor.status import (
    CHIEF,
    ENDING,
    HALTED,
    HEADER,
    RECORD,
    REQUEST,
    RESERVE,
    SOURCE_BYTES,
    TARGET,
    StepState,
    Word,
    Words,
    warnings_file,
)
from tfdist.storage.files import write_whole
from tfdist.variables import ENVIRONMENT_FILE, PROGRESS_FILE, WORKER_INDEX

HOLD_SECONDS = 600.0  # that a held worker waits for the target; the agent gives one, or takes its request back, before
PUBLISHED = ("TF_", "KERAS_", "OMP_", "XLA_", "HOROVOD_", "CUDA_", "MKL_", "KMP_", "NCCL_", "LD_")

_HOLD_LOOK_SECONDS = 0.0005
_RESERVE_LOOK_SECONDS = 0.005


class StatusReporter(StepObserver):
    """An observer that reports this worker's progress, and stops it at the agent's request; a call takes about 1 us."""

    def __init__(self, path: str | os.PathLike[str], worker: int) -> None:
        self._words = Words(path, must_have=worker)
        self._map = self._words.view
        self._at = HEADER + worker * RECORD
        self._activity = Activity.STARTING
        self._running: set[int] = set()  # a script that trains in several threads has several
        self._is_held = False
        self._warnings = warnings_file(Path(path), worker)
        self.worker = worker
        self._put(Word.PID, os.getpid())
        self._put(Word.CHANGED, time.monotonic_ns())

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "StatusReporter | None":
        """Return the reporter of this worker, or None without an agent; tell the agent which variables are set."""
        path = PROGRESS_FILE.read(environ)
        if not path or not os.path.exists(path):
            return None
        reporter = cls(path, WORKER_INDEX.read(environ))  # a chief has no number
        _publish_environment(environ)
        return reporter

    # Steps

    def before_step(self, step: int) -> End | None:
        """Wait while these workers are in reserve or held, and decide whether all stop before this step."""
        self.stand_by()
        return End(HALTED, saves=True) if self._map[REQUEST] and self._held(step) else None

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        self._running.add(step)
        self._put(Word.CHANGED, now)
        self._put(Word.POSITION, 4 * (step + 1) + StepState.RUNNING)

    def on_end(self, step: int, worked: int, now: int) -> None:
        self._put(Word.STEP, worked)
        self._map[self._at + Word.ENDED] += 1
        self._put(Word.CHANGED, now)
        self._running.discard(step)
        if not self._running and not self._is_held:
            self._put(Word.POSITION, 4 * (step + 1) + StepState.DONE)
        if not self._map[self._at + Word.FIRST_STEP]:
            self._put(Word.FIRST_STEP, now)

    def on_activity(self, activity: Activity, now: int) -> None:
        self._activity = activity
        self._put(Word.CHANGED, now)  # before the change, which must not be taken for old
        self._put(Word.ACTIVITY, activity)

    def on_warning(self, sentence: str) -> None:
        with suppress(OSError):  # memory is full: the log has it
            with open(self._warnings, "a", encoding="utf-8") as file:
                file.write(" ".join(sentence.splitlines()) + "\n")
            self._map[self._at + Word.WARNINGS] += 1

    # What the agent wants

    @property
    def is_asked_to_hold(self) -> bool:
        """Whether the agent asks all workers to stop before the same step."""
        return bool(self._map[REQUEST])

    @property
    def is_chief(self) -> bool:
        """Whether this process is asked to end by SIGTERM alone, and handles the signal itself."""
        return bool(self._map[CHIEF])

    @property
    def is_in_reserve(self) -> bool:
        """Whether the agent keeps these workers in reserve until they replace others."""
        return bool(self._map[RESERVE])

    def stand_by(self) -> None:
        if self.is_in_reserve:
            before = self._activity
            self.on_activity(Activity.RESERVE, time.monotonic_ns())
            while self._map[RESERVE]:
                time.sleep(_RESERVE_LOOK_SECONDS)
            self.on_activity(before, time.monotonic_ns())

    def _held(self, step: int) -> bool:
        """Hold before the step until the target is known; return whether the step is beyond the target."""
        deadline, before, request = time.monotonic() + HOLD_SECONDS, self._activity, self._map[REQUEST]
        if request and not self._map[TARGET]:
            self.on_activity(Activity.HELD, time.monotonic_ns())
            self._put(Word.HELD_FOR, request)
            self._is_held = True
            self._put(Word.POSITION, 4 * (step + 1) + StepState.HELD)
            while self._map[REQUEST] == request and not self._map[TARGET] and time.monotonic() < deadline:
                time.sleep(_HOLD_LOOK_SECONDS)
            self._is_held = False
            self.on_activity(before, time.monotonic_ns())
        target = self._map[TARGET]
        return bool(target) and step > target - 2

    # What is no step

    def resumed(self, step: int, source: str) -> None:
        """Report the restored state, and its source."""
        text = source.encode()[-SOURCE_BYTES:].ljust(SOURCE_BYTES, b"\0")
        for index in range(SOURCE_BYTES // 8):
            self._put(Word.SOURCE + index, int.from_bytes(text[8 * index : 8 * index + 8], "little", signed=True))
        self._put(Word.RESUMED, step + 1)

    def done(self, step: int) -> None:
        self._put(Word.DONE, step + 1)

    def saved(self, step: int) -> None:
        self._put(Word.SAVED, step + 1)

    def states_changed(self) -> None:
        """Report that the in-memory states for the next start have changed, or are gone."""
        self._map[self._at + Word.STATES] += 1

    def leaves(self) -> bool:
        """Report a request to end (SIGTERM) from a handler; return whether all workers stop before a step.

        If so, `before_step` ends this worker; otherwise it has to end at once, and the agent ends the job.
        """
        self._put(Word.LEAVES, 1)
        return not self._map[ENDING]

    def close(self) -> None:
        self._words.close()

    def _put(self, word: int, value: int) -> None:
        self._map[self._at + word] = value


def _publish_environment(environ: Mapping[str, str]) -> None:
    """Write the variables that frameworks read, once per job, for processes that are prepared for a restart."""
    path = ENVIRONMENT_FILE.read(environ)
    if not path or os.path.exists(path):
        return
    with suppress(OSError):  # a restart is slower then
        published = {name: value for name, value in environ.items() if name.startswith(PUBLISHED)}
        write_whole(Path(path), json.dumps(published))
