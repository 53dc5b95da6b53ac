"""Workers of which one is slow: the cost of waiting for it, and the gain of not waiting."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.servers.throttle import Throttle
from tfdist.bench.suite import Quartiles, Told, in_turns, quartiles, ratio, untold
from tfdist.bench.workers import lanes
from tfdist.training.parameter_servers.staleness import Distribution

__all__ = ["MODES", "SERVERS", "Crowd", "bounds", "measured"]

MODES = ("synchronous", "bounded", "asynchronous")
SERVERS = 2

_CHIEF = "benchmarks.servers.slow_workers_chief"
_WARM_UP_BATCHES_PER_WORKER = 4
_MEASUREMENTS_ALONE = 3
# One thread for each process: the slow worker is then slower by its stops, and others have their own core.
_ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1"}


def bounds(workers: int) -> dict[str, int | None]:
    """Return the `max_staleness` of each mode.

    Bounded is one more than the number of workers: each has a batch, and two more updates may come between.

    Example:
        >>> bounds(3)
        {'synchronous': 0, 'bounded': 4, 'asynchronous': None}
    """
    return {"synchronous": 0, "bounded": workers + 1, "asynchronous": None}


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """A number of workers, one of them slow, in every mode."""

    workers: int  # the number of workers
    slow_down: float | None  # how many times slower the slow worker was by itself; None if none is slow
    examples: int  # in one measurement of each mode
    updates: Mapping[str, int]  # mode -> updates of the weights in one measurement
    seconds: Mapping[str, Sequence[float]]  # mode -> seconds of a measurement, one per round
    staleness: Mapping[str, Mapping[int, int]]  # mode -> staleness -> the number of gradients in all rounds that had it

    def examples_per_second(self, mode: str) -> Quartiles:
        """Return the examples per second of all workers together."""
        return quartiles([self.examples / seconds for seconds in self.seconds[mode]])

    def steps_per_second(self, mode: str) -> Quartiles:
        """Return the updates of the weights per second."""
        return quartiles([self.updates[mode] / seconds for seconds in self.seconds[mode]])

    def speed(self, mode: str) -> Quartiles:
        """Return examples per second over those of the synchronous mode in the same round."""
        return ratio(self.seconds["synchronous"], self.seconds[mode])

    def distribution(self, mode: str) -> Distribution:
        return Distribution(Counter(self.staleness[mode]))


def measured(
    workers: int, *, slow_factor: float, rounds: int, steps: int, batch_size: int, told: Told = untold
) -> Crowd:
    """Train in all modes in turns over the same workers, and return the measurements."""
    slow_down = None
    # the synchronous mode gives a step to all workers at once, and the others give a batch to one worker
    steps_of = {mode: steps * (1 if mode == "synchronous" else workers) for mode in MODES}
    with contextlib.ExitStack() as stack:
        lane = stack.enter_context(lanes.Lane("chief", workers=1, environment=_ONE_THREAD))
        told("starting")
        (pids,) = lane.call(f"{_CHIEF}:start", workers=workers, servers=SERVERS, bounds=bounds(workers))
        for mode in MODES:
            told(f"{mode}, warming up")
            warm_up = _WARM_UP_BATCHES_PER_WORKER * (1 if mode == "synchronous" else workers)
            lane.call(f"{_CHIEF}:prepare", mode=mode, batch_size=batch_size, steps=warm_up)
        if workers > 1:
            told("the slow worker alone")
            slow_down = _slow_down(lane, stack, workers - 1, pids[-1], slow_factor)

        def measure(mode: str, number: int) -> dict[str, Any]:
            return dict(lane.call(f"{_CHIEF}:measure", mode=mode, steps=steps_of[mode])[0])

        found = in_turns(MODES, measure, count=rounds, told=told)
        lane.call(f"{_CHIEF}:end")
    staleness: dict[str, Counter[int]] = {mode: Counter() for mode in MODES}
    for mode, measurements in found.items():
        for one in measurements:
            staleness[mode].update({int(each): count for each, count in one["staleness"].items()})
    return Crowd(
        workers=workers,
        slow_down=slow_down,
        examples=steps * workers * batch_size,
        updates=steps_of,
        seconds={mode: [one["seconds"] for one in measurements] for mode, measurements in found.items()},
        staleness={mode: dict(sorted(counts.items())) for mode, counts in staleness.items()},
    )


def _slow_down(lane: lanes.Lane, stack: contextlib.ExitStack, worker: int, pid: int, factor: float) -> float:
    """Make a worker slow while the exit stack is open; return how many times slower it computes."""

    def alone() -> float:
        return median(lane.call(f"{_CHIEF}:alone", worker=worker)[0] for _ in range(_MEASUREMENTS_ALONE))

    before = alone()
    stack.enter_context(Throttle(pid, factor))
    return alone() / before
