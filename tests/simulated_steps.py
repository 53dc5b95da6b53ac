"""Rows of a simulated job, for tests of what is said of it: workers that wait for each other, one of them late."""

import numpy as np

from tfdist.monitor.recording.rows import NORM_EVERY, WIDTH, Column

MS = 1_000_000
# a step of 20 ms
USUAL = {"input": 1.0, "forward": 5.0, "backward": 9.0, "communication": 2.0, "update": 2.0, "python": 1.0}


def simulated(workers=2, steps=200, noise=0.05, seed=0, usual=USUAL, late=None, every=1):  # type: ignore[no-untyped-def]
    """Rows of workers that wait for each other's gradients, one of them late: (worker, part, ms)."""
    chance = np.random.default_rng(seed)
    rows = np.zeros([workers, steps, WIDTH], np.int64)
    ends = np.full(workers, 10**12)
    for step in range(steps):
        takes = {part: ms * chance.lognormal(0, noise, workers) for part, ms in usual.items()}
        if late is not None and step % every == 0:
            takes[late[1]][late[0]] += late[2]
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
            row[Column.EXECUTE] = done[worker] - graph[worker]
            row[Column.GRAPH_BEGIN : Column.LOSS] = (
                *(graph[worker], forward[worker], gradients[worker], reduced[worker], done[worker]),
            )
            row[Column.LOSS] = np.float64(0.5).view(np.int64)
            if step % NORM_EVERY == 0:
                row[Column.GRADIENT_NORM] = np.float64(2.0).view(np.int64)
        ends = done
    rows[:, 0, Column.IS_FIRST] = 1
    return dict(enumerate(rows))
