"""A page of memory that workers and the agent share: how far each worker is, and whether all shall stop.

The agent makes a small file and maps it; each worker maps it too, and writes into a record of its own, one aligned word
of eight bytes at a time, so that nobody ever sees half a number. No call waits for anybody, except that of a worker
which is asked to hold; all cost about a microsecond. Loads no TensorFlow.

    word 0  what the file is                          4  whether all are to end at once
         1  number of workers                         5  whether these workers are in reserve
         2  number of the request to halt, or 0       6  whether it is a chief's, which nobody asks to halt
         3  the last tick before a halt, + 2; or 0

and from word 8 on, for each worker, what `_Word` names.

How all stop before the same tick is in `hold`.
"""

import contextlib
import json
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launch import faults
from tfdist.launch.hold import Position, Standing

HALTED = 75  # exit code of a worker that has stopped after a request, and has saved: EX_TEMPFAIL
HOLD_SECONDS = 600.0  # that a held worker waits for the target; the agent gives one, or takes its request back, before
SETTLE_SECONDS = 0.001  # after which a word written by one process is seen by every other
PUBLISHED = ("TF_", "KERAS_", "OMP_", "XLA_", "HOROVOD_", "CUDA_", "MKL_", "KMP_", "NCCL_", "LD_")

_MAGIC = 0x74666470_00000001  # "tfdp", layout 1
_HEADER, _RECORD = 8, 24  # words
_REQUEST, _TARGET, _ENDING, _RESERVE, _CHIEF = 2, 3, 4, 5, 6
_HOLD_LOOK_SECONDS = 0.0005
_RESERVE_LOOK_SECONDS = 0.005
_SOURCE_BYTES = 64


class Phase(IntEnum):
    """What a worker does; how long it may take follows from it."""

    STARTING = 0  # before fit, or restoring
    TRACING = 1  # the first time of a function, which is compiled
    STEPPING = 2  # inside a step, or so near to one that it takes no time of its own
    INPUT = 3  # it waits for data
    BETWEEN = 4  # callbacks at the ends of epochs, and whatever else of the user's has no bound
    SAVING = 5
    VALIDATING = 6
    HELD = 7  # it was asked to stop, and waits for the number of the step
    ENDED = 8  # fit has returned; or stops as it was asked to
    RESERVE = 9  # it is ready to step, and waits until it is needed
    WAITING = 10  # a chief waits for its workers, whose time it measures itself


class _Word(IntEnum):
    PID = 0
    PHASE = 1
    POSITION = 2  # 4 * (tick + 1) + standing, in one word: both are read together
    CHANGED = 3  # clock of the last change of phase or position, in ns
    STEP = 4  # how long the last tick took, in ns
    TICKED = 5  # clock of the first end of a tick, in ns
    RESUMED = 6  # step + 1
    DONE = 7  # step + 1
    SAVED = 8  # step + 1
    LEAVES = 9
    HELD_FOR = 10  # number of the request for which it holds, or held
    ENDED = 11  # how many ticks have ended
    SOURCE = 16  # and the seven after it: text


class Reporter:
    """A worker's side of the page.

    Args:
        path: of the page.
        worker: the number of this worker.

    Example:
        >>> reporter = Reporter.from_environment({})       # not under `tfdist run`
        >>> reporter is None
        True
    """

    def __init__(self, path: str | os.PathLike[str], worker: int) -> None:
        self._words = _Words(path, must_have=worker)
        self._map = self._words.view
        self._at = _HEADER + worker * _RECORD
        self._phase = Phase.STARTING
        self._began = 0
        self.worker = worker
        self._put(_Word.PID, os.getpid())
        self._put(_Word.CHANGED, time.monotonic_ns())

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Reporter | None":
        """Return the reporter of this worker, or None where no agent looks; tell the agent which variables are set.

        Raises:
            ConfigError: the page is none, or has no place for this worker.
        """
        path, worker = environ.get("TFDIST_PROGRESS_FILE"), environ.get("TFDIST_WORKER_INDEX")
        if not path or not os.path.exists(path):
            return None
        reporter = cls(path, int(worker or 0))  # a chief has no number
        _publish_environment(environ)
        return reporter

    def phase(self, phase: Phase) -> None:
        """Say what this worker does from now on."""
        if phase is not self._phase:
            self._phase = phase
            self._put(_Word.CHANGED, time.monotonic_ns())  # before what has changed: nobody may take it for old
            self._put(_Word.PHASE, phase)

    @contextlib.contextmanager
    def inside(self, phase: Phase) -> Iterator[None]:
        """Say what this worker does in the block; afterwards it does again what it did before."""
        before = self._phase
        self.phase(phase)
        try:
            yield
        finally:
            self.phase(before)

    @property
    def is_asked_to_hold(self) -> bool:
        """Whether the agent wants all to stop before the same tick."""
        return bool(self._map[_REQUEST])

    @property
    def is_chief(self) -> bool:
        """Whether this process is asked to end by SIGTERM alone, and sees to it by itself."""
        return bool(self._map[_CHIEF])

    @property
    def is_in_reserve(self) -> bool:
        """Whether the agent keeps these workers until they take the place of others."""
        return bool(self._map[_RESERVE])

    def stand_by(self) -> None:
        """Wait, if the agent keeps these workers in reserve, until they take the place of others."""
        if self.is_in_reserve:
            with self.inside(Phase.RESERVE):
                while self.is_in_reserve:
                    time.sleep(_RESERVE_LOOK_SECONDS)

    def begins(self, tick: int) -> bool:
        """Say that a tick is about to start; return whether to stop instead, which all workers do before this tick.

        Args:
            tick: number of the collective step, train or validation: the same on all workers, rising by one.
        """
        if self._map[_REQUEST] and self._held(tick):
            self.phase(Phase.ENDED)  # whoever saves now says so; afterwards nothing is left to do
            return True
        self._began = time.monotonic_ns()
        self._map[self._at + _Word.CHANGED] = self._began
        self._map[self._at + _Word.POSITION] = 4 * (tick + 1) + Standing.RUNNING
        faults.at("step", tick)
        return False

    def ends(self, tick: int) -> None:
        """Say that a tick has ended."""
        now = time.monotonic_ns()
        self._map[self._at + _Word.STEP] = now - self._began
        self._map[self._at + _Word.ENDED] += 1
        self._map[self._at + _Word.CHANGED] = now
        self._map[self._at + _Word.POSITION] = 4 * (tick + 1) + Standing.BEHIND
        if not self._map[self._at + _Word.TICKED]:
            self._map[self._at + _Word.TICKED] = now

    def resumed(self, step: int, source: str) -> None:
        """Say, after restoring, from where: for the agent's report.

        Args:
            step: number of steps that need not be repeated.
            source: where the state came from, in a few words such as "memory" or a path.
        """
        text = source.encode()[-_SOURCE_BYTES:].ljust(_SOURCE_BYTES, b"\0")
        for index in range(_SOURCE_BYTES // 8):
            self._put(_Word.SOURCE + index, int.from_bytes(text[8 * index : 8 * index + 8], "little", signed=True))
        self._put(_Word.RESUMED, step + 1)

    def done(self, step: int) -> None:
        """Say how many steps have been done: those that are not in a state are repeated after a failure."""
        self._map[self._at + _Word.DONE] = step + 1

    def saved(self, step: int) -> None:
        """Say that a backup of the state after so many steps is complete."""
        self._put(_Word.SAVED, step + 1)

    def leaves(self) -> bool:
        """Say that this worker was asked to end (SIGTERM), in a handler; return whether all stop before a step.

        If they do, `begins` says when; if not, the agent itself ends the job, and this worker shall end at once.
        """
        self._put(_Word.LEAVES, 1)
        return not self._map[_ENDING]

    def close(self) -> None:
        """Let go of the page; the reporter cannot be used after it."""
        self._words.close()

    def _put(self, word: int, value: int) -> None:
        self._map[self._at + word] = value

    def _held(self, tick: int) -> bool:
        """Hold before the tick until the target is known; return whether the tick comes after it."""
        deadline, phase, request = time.monotonic() + HOLD_SECONDS, self._phase, self._map[_REQUEST]
        if request and not self._map[_TARGET]:
            self.phase(Phase.HELD)
            self._put(_Word.HELD_FOR, request)
            self._put(_Word.POSITION, 4 * (tick + 1) + Standing.HELD)
            while self._map[_REQUEST] == request and not self._map[_TARGET] and time.monotonic() < deadline:
                time.sleep(_HOLD_LOOK_SECONDS)
            self.phase(phase)
        target = self._map[_TARGET]
        return bool(target) and tick > target - 2


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a worker has said.

    Attributes:
        pid: of its process; 0 when it has said nothing.
        phase: what it does.
        position: between the ticks.
        changed: clock time at which phase or position changed last, in seconds; 0 when it has said nothing.
        step_seconds: how long its last tick took; 0 when none has ended.
        ended: how many ticks have ended.
        ticked: clock time at which its first tick ended, or None.
        resumed: how many steps it need not repeat, or None when it has restored nothing.
        source: where the state came from.
        done: how many steps have been done, in earlier starts too, or None when it did not say.
        saved: number of steps in its newest backup, or None.
        leaves: whether it was asked to end.
    """

    pid: int
    phase: Phase
    position: Position
    changed: float
    step_seconds: float
    ended: int
    ticked: float | None
    resumed: int | None
    source: str
    done: int | None
    saved: int | None
    leaves: bool


class Page:
    """The agent's side of the page.

    Args:
        path: where the file is made; it must not exist.
        workers: how many have a record in it.
        reserve: whether they wait, before their first step, for `take_over`.
        chief: whether the one that reports is the chief of a job with parameter servers.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> page = Page(Path(folder.name, "progress"), workers=2)
        >>> reporter = Reporter(Path(folder.name, "progress"), 1)
        >>> reporter.begins(0)
        False
        >>> page.read(1).position
        Position(tick=0, standing=<Standing.RUNNING: 1>)
        >>> reporter.close(), page.close(), folder.cleanup()
        (None, None, None)
    """

    def __init__(self, path: Path, workers: int, *, reserve: bool = False, chief: bool = False) -> None:
        words = bytearray(8 * (_HEADER + workers * _RECORD))
        with memoryview(words).cast("q") as view:
            view[0], view[1], view[_RESERVE], view[_CHIEF] = _MAGIC, workers, reserve, chief
        with open(path, "xb") as file:
            file.write(words)
        self._words = _Words(path, must_have=workers - 1)
        self._requests = 0
        self.path = path
        self.workers = workers

    def read(self, worker: int) -> Progress:
        """Return what a worker has said until now."""
        return _said(self._words.view, worker)

    def ask_to_halt(self) -> None:
        """Ask all workers to hold before their next tick; what they say is sure SETTLE_SECONDS later."""
        self._requests += 1
        self._words.view[_REQUEST] = self._requests

    def take_back(self) -> None:
        """Let the workers that hold go on; only while there is no target."""
        assert not self._words.view[_TARGET]
        self._words.view[_REQUEST] = 0

    def set_target(self, tick: int) -> None:
        """Let the workers run up to and including the tick, and stop before the next."""
        self._words.view[_TARGET] = tick + 2

    def take_over(self) -> None:
        """Let the workers in reserve go on."""
        now = time.monotonic_ns()
        for worker in range(self.workers):  # how long they have waited is nothing that they did
            self._words.view[_HEADER + worker * _RECORD + _Word.CHANGED] = now
        self._words.view[_RESERVE] = 0

    def end(self) -> None:
        """Say that the signals which workers get now mean their end, not a halt."""
        self._words.view[_ENDING] = 1

    def close(self) -> None:
        """Let go of the file, and remove it."""
        self._words.close()
        self.path.unlink(missing_ok=True)


def read_all(path: str | os.PathLike[str]) -> tuple[Progress, ...]:
    """Return what all workers have said on a page that another process has made.

    Raises:
        ConfigError: the file is no page.
        OSError: it cannot be read.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> page = Page(Path(folder.name, "progress"), workers=2)
        >>> [said.phase.name for said in read_all(page.path)]
        ['STARTING', 'STARTING']
        >>> page.close(), folder.cleanup()
        (None, None)
    """
    with contextlib.closing(_Words(path, must_have=0)) as words:
        return tuple(_said(words.view, worker) for worker in range(words.view[1]))


def _said(page: "memoryview[int]", worker: int) -> Progress:
    start = _HEADER + worker * _RECORD
    words = page[start : start + _RECORD].tolist()
    tick, standing = divmod(words[_Word.POSITION], 4)
    if standing == Standing.HELD and words[_Word.HELD_FOR] != page[_REQUEST]:
        tick, standing = tick - 1, Standing.BEHIND  # it held for a request that was taken back, and goes on
    text = b"".join(word.to_bytes(8, "little", signed=True) for word in words[_Word.SOURCE :])
    return Progress(
        pid=words[_Word.PID],
        phase=Phase(words[_Word.PHASE]),
        position=Position(tick=tick - 1, standing=Standing(standing)),
        changed=words[_Word.CHANGED] / 1e9,
        step_seconds=words[_Word.STEP] / 1e9,
        ended=words[_Word.ENDED],
        ticked=words[_Word.TICKED] / 1e9 if words[_Word.TICKED] else None,
        resumed=words[_Word.RESUMED] - 1 if words[_Word.RESUMED] else None,
        source=text.rstrip(b"\0").decode(errors="replace"),
        done=words[_Word.DONE] - 1 if words[_Word.DONE] else None,
        saved=words[_Word.SAVED] - 1 if words[_Word.SAVED] else None,
        leaves=bool(words[_Word.LEAVES]),
    )


class _Words:
    """A mapped file as words."""

    def __init__(self, path: str | os.PathLike[str], *, must_have: int) -> None:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if must_have < 0 or size % 8 or size < 8 * (_HEADER + (must_have + 1) * _RECORD):
                raise _no_page(path, must_have)
            self._mapped = mmap.mmap(file.fileno(), 0)
        self.view = memoryview(self._mapped).cast("q")
        if self.view[0] != _MAGIC or must_have >= self.view[1]:
            self.close()
            raise _no_page(path, must_have)

    def close(self) -> None:
        self.view.release()
        self._mapped.close()


def _no_page(path: str | os.PathLike[str], worker: int) -> ConfigError:
    return ConfigError(
        f"{os.fspath(path)} (TFDIST_PROGRESS_FILE) is no progress page with a record for worker {worker} "
        "(TFDIST_WORKER_INDEX). `tfdist run` of the same version sets both; unset them elsewhere."
    )


def _publish_environment(environ: Mapping[str, str]) -> None:
    """Write the variables that frameworks read, once per job: processes that are prepared for a restart take them."""
    path = environ.get("TFDIST_ENVIRONMENT_FILE")
    if not path or os.path.exists(path):
        return
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):  # a restart is slower then
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({name: value for name, value in environ.items() if name.startswith(PUBLISHED)}, file)
        os.replace(temporary, path)
