"""Rows of a simulated job, for tests of what is said of it, and a recorder that is told of simulated steps."""

import numpy as np

from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.recording.recorder import Recorder
from tfdist.monitor.recording.rows import NORM_EVERY, STAMPS, WIDTH, Column
from tfdist.monitor.step_clock import StepClock

MS = 1_000_000
# a step of 20 ms
USUAL = {"input": 1.0, "forward": 5.0, "backward": 9.0, "communication": 2.0, "update": 2.0, "python": 1.0}


def simulated(workers=2, steps=200, noise=0.05, seed=0, usual=USUAL, late=None, every=1, agree=False):  # type: ignore[no-untyped-def]
    """Rows of workers that wait for each other's gradients, one of them late: (worker, part, ms).

    The part may be "computing": then what computes takes longer in proportion, by so many ms together.
    With `agree` workers wait for each other after each step, too, as where a callback may set something.
    """
    computing = {"forward": 5 / 17, "backward": 9 / 17, "update": 2 / 17, "python": 1 / 17}
    chance = np.random.default_rng(seed)
    rows = np.zeros([workers, steps, WIDTH], np.int64)
    ends, agreed = np.full(workers, 10**12), np.zeros(workers, np.int64)
    for step in range(steps):
        takes = {part: ms * chance.lognormal(0, noise, workers) for part, ms in usual.items()}
        if late is not None and step % every == 0:
            for part, share in (computing if late[1] == "computing" else {late[1]: 1.0}).items():
                takes[part][late[0]] += share * late[2]
        spans = {part: (values * MS).astype(np.int64) for part, values in takes.items()}
        begin = ends + spans["python"]
        graph = begin + spans["input"]
        forward = graph + spans["forward"]
        gradients = forward + spans["backward"]
        reduced = np.full(workers, gradients.max() + spans["communication"].max())
        done = reduced + spans["update"]
        for worker in range(workers):
            row = rows[worker, step]
            row[Column.SEQUENCE], row[Column.STEP] = step + 1, step
            row[Column.BEGIN], row[Column.END], row[Column.INPUT] = begin[worker], done[worker], spans["input"][worker]
            row[Column.AGREED] = agreed[worker]
            row[Column.EXECUTE] = done[worker] - graph[worker]
            row[Column.GRAPH_BEGIN : Column.LOSS] = (
                *(graph[worker], forward[worker], gradients[worker], reduced[worker], done[worker]),
            )
            row[Column.LOSS] = np.float64(0.5).view(np.int64)
            if step % NORM_EVERY == 0:
                row[Column.GRADIENT_NORM] = np.float64(2.0).view(np.int64)
        ends = np.full(workers, done.max()) if agree else done
        agreed = ends - done
    rows[:, 0, Column.IS_FIRST] = 1
    return dict(enumerate(rows))


class Driven:
    """A recorder that is told of steps of 10 ms, with stamps in its graph, by a clock that is set by hand."""

    def __init__(self, folder):  # type: ignore[no-untyped-def]
        self.now, self.count = 10**15, 0
        self._stamps = np.zeros([1024, len(STAMPS)])
        self.recorder = Recorder(folder / "worker-0", clocks=lambda: (self.now,) * 2)
        self.recorder.take_stamps_from(lambda: (self.count, self._stamps))
        self._clock = StepClock([self.recorder], now=lambda: self.now)

    def step(self):  # type: ignore[no-untyped-def]
        with self._clock.step(Kind.TRAIN, Phase.INPUT):
            self.now += MS
            self._clock.enter(Phase.EXECUTE)
            self._stamps[self.count % len(self._stamps)] = self.now / 1e9
            self.count += 1
            self.now += 8 * MS
        self._clock.enter(Phase.CALLBACKS)
        self.now += MS
