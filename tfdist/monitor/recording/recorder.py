"""Records the parts of this process's steps into a ring that other processes read.

The thread that steps only keeps events. Twice a second, and at the end of an epoch, another thread takes the stamps of
the graph and writes rows. Loads no TensorFlow.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.monitor.observer import StepObserver
from tfdist.monitor.phases import Activity, Kind, Passes, Phase
from tfdist.monitor.recording.device_time import DEVICE_STAMPS, on_device_time
from tfdist.monitor.recording.row_ring import Ring
from tfdist.monitor.recording.rows import CHIEF_WORKERS, COLUMN_OF, HOST_PHASES, KINDS, STAMPS, Column
from tfdist.variables import MONITOR_DIR, WORKER_INDEX

FLUSH_SECONDS = 0.5
#: steps after which it is written in any case: half of the ring of stamps
MOST_STEPS = 512
# steps of which a device's stamps are waited for
_MOST_HELD = 4 * MOST_STEPS
# stamps have wall-clock time; if the clock is set by more than this between two looks, they are not used
_CLOCK_SET_NS = 1_000_000

# the longest reading of two clocks that is accepted, and the number of attempts
_CLOCK_NS, _READINGS = 5_000, 10

_FIRST, _EXECUTE = STAMPS[0], int(Column.EXECUTE)
# the columns that each step writes, as integers: enums look members up slowly
_STEP, _KIND, _BEGIN, _END = (int(one) for one in (Column.STEP, Column.KIND, Column.BEGIN, Column.END))
_IS_FIRST, _SAVING, _AGREED = (int(one) for one in (Column.IS_FIRST, Column.SAVING, Column.AGREED))
_COMPUTED, _FORWARDS = int(Column.COMPUTED), int(Column.FORWARDS)
_BACKWARDS, _LOSSES = int(Column.BACKWARDS), int(Column.LOSSES)
_NUMBERS = [column - STAMPS[0] for column in (Column.LOSS, Column.GRADIENT_NORM)]
_TIMES = [place for place in range(len(STAMPS)) if place not in (*_NUMBERS, Column.REDUCTIONS - STAMPS[0])]

_AGREE, _SAVES = Phase.AGREE, Activity.SAVING
_FLUSH_NS = int(FLUSH_SECONDS * 1e9)

#: returns how many rows of stamps were written in all, and the ring that holds the last of them
ReadStamps = Callable[[], tuple[int, Any]]


@dataclass(slots=True)
class _Step:
    """The host's record of a step, kept as it comes, since each word costs time in the thread that steps."""

    number: int
    kind: Kind
    begin: int
    is_first: bool
    saving: int
    agreed: int = 0
    end: int = 0
    spent: Mapping[Phase, int] | None = None  # once it has ended
    computed: tuple[tuple[int, int, Passes | None], ...] = ()  # of a chief's workers

    def row(self) -> list[int]:
        row = [0] * _FIRST
        row[_STEP], row[_KIND], row[_BEGIN], row[_END] = self.number, KINDS.index(self.kind), self.begin, self.end
        row[_IS_FIRST], row[_SAVING], row[_AGREED] = self.is_first, self.saving, self.agreed
        for phase, nanoseconds in (self.spent or {}).items():
            row[COLUMN_OF[phase]] = nanoseconds
        for worker, nanoseconds, passes in self.computed:
            row[_COMPUTED + worker] += nanoseconds
            if passes is not None:
                row[_FORWARDS + worker] += round(1e9 * passes.forward)
                row[_BACKWARDS + worker] += round(1e9 * passes.backward)
                row[_LOSSES + worker] = int(np.float64(passes.loss).view(np.int64))
        return row


class Recorder(StepObserver):
    """Records the steps of this process into the ring at `path`."""

    def __init__(self, path: Path, *, clocks: Callable[[], tuple[int, int]] | None = None) -> None:
        self.path = path
        self._ring = Ring(path)
        self._process = os.getpid()
        self._clocks = clocks or both_clocks
        self._offset = self._wall_offset()
        self._stamps: ReadStamps | None = None
        self._seen = 0  # rows of stamps
        self._left = np.zeros([0, len(STAMPS)], np.int64)  # stamps of a step that has not ended
        # a device runs behind the host: whether stamps are from one, how far it has come, and when its last step ended
        self._of_device, self._reached, self._last_end = False, 0, 0
        self._steps: deque[_Step] = deque()
        self._writing = threading.Lock()
        self._is_due = threading.Event()
        self._writer: threading.Thread | None = None
        self._closed = False
        self._open: dict[int, _Step] = {}  # by the number of the step; threads have one each
        self._number = -1
        self._is_first = True
        # between two steps: how long checkpoints were written, and when workers agreed on something and how long
        self._saving, self._agreed = 0, list[tuple[int, int]]()
        self._flushed = self._clocks()[1]
        atexit.register(self.flush)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Recorder | None":
        """The recorder of this worker, or None without a folder that it can write."""
        folder = MONITOR_DIR.read(environ)
        if not folder:
            return None
        try:
            return cls(Path(folder, f"worker-{WORKER_INDEX.read(environ)}"))
        except (OSError, ValueError):
            return None

    def take_stamps_from(self, read: ReadStamps, *, of_device: bool = False) -> None:
        """Take the stamps of steps from this ring of the graph's from now on.

        Those of a device (`device_time.DEVICE_STAMPS`) come late, and their steps are written on its time.
        """
        with self._writing:
            self._stamps, self._seen, self._of_device, self._reached = read, 0, of_device, 0
            self._left = np.zeros([0, len(DEVICE_STAMPS if of_device else STAMPS)], np.int64)

    # What is told of steps

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        begun = _Step(step, kind, now, self._is_first or step != self._number + 1, self._saving)
        if self._agreed:
            begun.agreed = sum(nanoseconds for _, nanoseconds in self._agreed)
            self._agreed.clear()
        self._open[step], self._number, self._is_first, self._saving = begun, step, False, 0

    def on_outside(self, phase: Phase, begin: int, end: int) -> None:
        if phase is _AGREE:
            self._agreed.append((begin, end - begin))

    def on_computed(self, step: int, worker: int, nanoseconds: int, passes: Passes | None) -> None:
        begun = self._open.get(step)
        if begun is not None and 0 <= worker < CHIEF_WORKERS:
            begun.computed = (*begun.computed, (worker, nanoseconds, passes))

    def on_step(self, step: int, spent: Mapping[Phase, int], now: int) -> None:
        begun = self._open.pop(step, None)
        if begun is None or self._closed:  # also where writing has failed: nobody would take it away again
            return
        begun.spent, begun.end = spent, now
        self._steps.append(begun)
        if len(self._steps) >= MOST_STEPS and not self._of_device:  # the thread is behind
            self.flush()
        elif now - self._flushed > _FLUSH_NS:
            self._flushed = now
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="tfdist-recorder", daemon=True)
                self._writer.start()
            self._is_due.set()

    def on_epoch_end(self) -> None:
        """Write the steps that have gathered; the time until the next step does not count as time of a step."""
        self._is_first = True
        self.flush(all_steps=False)

    def on_done(self, activity: Activity, begin: int, end: int) -> None:
        """Add up how long checkpoints are written, without what workers agree on meanwhile."""
        if activity is _SAVES:
            agreed = sum(nanoseconds for since, nanoseconds in self._agreed if since >= begin)
            self._saving += end - begin - agreed

    # What is written

    def flush(self, *, all_steps: bool = True) -> None:
        """Write the steps that have ended, if asked also those that a device has yet to do; from any thread."""
        if os.getpid() != self._process:  # a fork writes nothing in its parent's name
            return
        with self._writing:
            self._flushed = self._clocks()[1]
            ended = len(self._steps)  # before the stamps are read: those of a step that ends meanwhile come later
            if not ended or self._closed:
                return
            stamps = np.concatenate([self._left, self._new_stamps()])
            steps = [self._steps.popleft() for _ in range(ended if all_steps else self._done(stamps, ended))]
            if not steps:
                self._left = stamps
                return
            rows = np.zeros([len(steps), _FIRST + stamps.shape[1]], np.int64)
            rows[:, :_FIRST] = [step.row() for step in steps]
            is_later = stamps[:, 0] > rows[-1, _END]  # of a step that is under way meanwhile
            self._left = stamps[is_later]
            rows = joined(rows, stamps[~is_later])
            if self._of_device:
                rows = on_device_time(rows, self._last_end)
                self._last_end = int(rows[-1, _END])
            self._ring.add(rows)

    def _done(self, stamps: np.ndarray, ended: int) -> int:
        """Count the first of the ended steps that have ended on a device too, or that no stamps will come of."""
        if not self._of_device or ended > _MOST_HELD:
            return ended
        self._reached = int(stamps[:, Column.GRAPH_END - _FIRST].max(initial=self._reached))
        steps = (self._steps[place] for place in range(ended))  # the thread that steps appends meanwhile
        is_open = (step.kind is Kind.TRAIN and step.begin > self._reached for step in steps)
        return next((place for place, one in enumerate(is_open) if one), ended)

    def _write(self) -> None:
        try:
            while not self._closed:
                self._is_due.wait()
                self._is_due.clear()
                self.flush(all_steps=False)
        except Exception as error:  # nothing that is recorded is worth a training
            self._closed = True
            self._steps.clear()
            text = "Recording the steps of this process has failed with %r; it ends, and training continues."
            logging.getLogger("tfdist").warning(text, error, exc_info=error)

    def close(self) -> None:
        """Write the steps that have ended, and let go of the ring; the recorder is told nothing more."""
        self.flush()
        atexit.unregister(self.flush)
        with self._writing:
            self._closed = True
            self._ring.close()
        self._is_due.set()

    def _new_stamps(self) -> np.ndarray:
        """The rows of stamps since the last time, on the monotonic clock, shape (n, len(STAMPS))."""
        nothing = self._left[:0]
        if self._stamps is None:
            return nothing
        count, ring = self._stamps()
        fresh = count - self._seen
        self._seen = count
        before, self._offset = self._offset, self._wall_offset()
        if abs(self._offset - before) > _CLOCK_SET_NS:
            return nothing  # the wall clock was set meanwhile
        if fresh > len(ring):
            self._ring.lose(fresh - len(ring))
            fresh = len(ring)
        places = np.arange(count - fresh, count) % len(ring)
        return on_monotonic_clock(np.asarray(ring)[places], self._offset)

    def _wall_offset(self) -> int:
        wall, monotonic = self._clocks()
        return wall - monotonic


def both_clocks() -> tuple[int, int]:
    """The wall clock and the monotonic clock of one moment, from the fastest of several readings."""
    best = (2**62, 0, 0)
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, wall, (before + after) // 2))
        if best[0] < _CLOCK_NS:
            break
    return best[1:]


def on_monotonic_clock(stamps: np.ndarray, offset: int) -> np.ndarray:
    """Return rows of stamps as words: nanoseconds of the monotonic clock, and loss and norm as their bits."""
    words = np.zeros(stamps.shape, np.int64)
    places = [*_TIMES, *range(len(STAMPS), stamps.shape[1])]  # those of a device are behind all others
    times = stamps[:, places]
    words[:, places] = np.where(times > 0, np.rint(times * 1e9).astype(np.int64) - offset, 0)
    words[:, _NUMBERS] = np.ascontiguousarray(stamps[:, _NUMBERS]).view(np.int64)
    words[:, Column.REDUCTIONS - _FIRST] = stamps[:, Column.REDUCTIONS - _FIRST].astype(np.int64)
    return words


def joined(steps: np.ndarray, stamps: np.ndarray) -> np.ndarray:
    """A row for each step of the graph, with the host's data; for other steps the host's alone.

    Stamps belong to the host's step in whose time they are. Of several in one call the first has the host's phases;
    each other begins where the one before ended, and waits for input in between.
    """
    stamps = stamps[np.argsort(stamps[:, 0], kind="stable")]
    first = np.searchsorted(stamps[:, 0], steps[:, Column.BEGIN], "left")
    counts = np.searchsorted(stamps[:, 0], steps[:, Column.END], "right") - first
    lengths = np.maximum(counts, 1)
    rows = np.repeat(steps, lengths, axis=0)
    places = np.cumsum(lengths) - lengths  # of each step's first row
    alone = counts == 1
    rows[places[alone], _FIRST:] = stamps[first[alone]]
    for number in np.flatnonzero(counts > 1):
        place, begin, count = places[number], first[number], counts[number]
        rows[place : place + count] = _several(steps[number], stamps[begin : begin + count].copy())
    return rows


def _several(step: np.ndarray, inside: np.ndarray) -> np.ndarray:
    ends = inside[:, Column.GRAPH_END - _FIRST]
    inside[1:, 0] = np.maximum(inside[1:, 0], ends[:-1])  # the next may begin beside the end of one
    parts = np.zeros([len(inside), len(step)], np.int64)
    parts[:, _FIRST:] = inside
    parts[:, [Column.STEP, Column.KIND]] = step[[Column.STEP, Column.KIND]]
    parts[:, Column.PART] = range(len(inside))
    parts[0, : Column.GRAPH_BEGIN] = step[: Column.GRAPH_BEGIN]
    parts[1:, Column.BEGIN], parts[:-1, Column.END] = ends[:-1], ends[:-1]
    parts[-1, Column.END] = step[Column.END]
    parts[1:, Column.INPUT] = np.maximum(inside[1:, 0] - ends[:-1], 0)
    parts[:, Column.EXECUTE] = parts[:, Column.END] - parts[:, Column.BEGIN] - parts[:, Column.INPUT]
    before = sum(int(step[column]) for column in HOST_PHASES if column != _EXECUTE)
    taking = max(int(inside[0, 0] - step[Column.BEGIN]) - before, 0)  # by the graph itself
    parts[0, Column.INPUT] += taking
    parts[0, Column.EXECUTE] -= before - int(step[Column.INPUT]) + taking
    return parts
