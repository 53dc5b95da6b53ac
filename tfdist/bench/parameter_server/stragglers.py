"""Workers of which one is slow: what waiting for it costs, and what not waiting gains."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tfdist.bench.parameter_server.throttle import Throttle
from tfdist.bench.workers import lanes
from tfdist.coordination.staleness import Distribution
from tfdist.errors import ConfigError
from tfdist.measurement.ratio import Quartiles, quartiles, ratio
from tfdist.validation import integer, number

__all__ = ["MODES", "SERVERS", "Crowd", "Setup", "bounds", "measure"]

MODES = ("synchronous", "bounded", "asynchronous")
SERVERS = 2

_ARMS = "tfdist.bench.parameter_server.straggler_arms"
_WARM_UP_BATCHES_PER_WORKER = 4
_MEASUREMENTS_ALONE = 3
# One thread for each process: the slow worker is then slower by what it is held up, and others have their own core.
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
class Setup:
    """What is measured.

    Attributes:
        workers: numbers of workers, one measurement each.
        slow_factor: how many times slower one of several workers is, at least 1.
        rounds: measurements of each mode.
        steps: of each worker per measurement, in the mean.
        batch_size: examples in a worker's step.
    """

    workers: Sequence[int]
    slow_factor: float
    rounds: int
    steps: int
    batch_size: int

    def __post_init__(self) -> None:
        for count in self.workers:
            integer("workers", count, minimum=1)
        if not self.workers or len(set(self.workers)) < len(self.workers):
            raise ConfigError(f"workers is {list(self.workers)}; name some numbers, each once, such as 1,2,3.")
        number("slow_factor", self.slow_factor, minimum=1)
        for name in ("rounds", "steps", "batch_size"):
            integer(name, getattr(self, name), minimum=1)


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """So many workers, one of them slow, in every mode.

    Attributes:
        workers: how many.
        slow_down: how many times slower the slow one was by itself; None where none is slow.
        examples: in one measurement of each mode.
        updates: mode -> updates of the weights in one measurement.
        seconds: mode -> seconds of a measurement, one per round.
        staleness: mode -> staleness -> how many gradients of all rounds had it.
    """

    workers: int
    slow_down: float | None
    examples: int
    updates: Mapping[str, int]
    seconds: Mapping[str, Sequence[float]]
    staleness: Mapping[str, Mapping[int, int]]

    def examples_per_second(self, mode: str) -> Quartiles:
        """Return how many examples all workers together trained on per second."""
        return quartiles([self.examples / seconds for seconds in self.seconds[mode]])

    def steps_per_second(self, mode: str) -> Quartiles:
        """Return how many updates of the weights there were per second."""
        return quartiles([self.updates[mode] / seconds for seconds in self.seconds[mode]])

    def speed(self, mode: str) -> Quartiles:
        """Return examples per second over those of the synchronous mode in the same round."""
        return ratio(self.seconds["synchronous"], self.seconds[mode])

    def distribution(self, mode: str) -> Distribution:
        """Return how stale the gradients were."""
        return Distribution(Counter(self.staleness[mode]))


def measure(setup: Setup, workers: int, *, on_turn: Callable[[str], None] = lambda what: None) -> Crowd:
    """Train in all modes in turns over the same workers, and return what was measured.

    Args:
        setup: what to measure.
        workers: how many workers.
        on_turn: told what is measured next.
    Raises:
        TfdistError: the chief failed, or a worker was lost; the message has its traceback.

    Example:
        >>> setup = Setup(workers=[2], slow_factor=3.0, rounds=3, steps=10, batch_size=256)
        >>> measure(setup, 2).speed("asynchronous")                   # doctest: +SKIP
        Quartiles(median=1.7, lower=1.6, upper=1.8)
    """
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    staleness: dict[str, Counter[int]] = {mode: Counter() for mode in MODES}
    slow_down = None
    # the synchronous mode gives a step to every worker at once, the others a batch to one
    steps = {mode: setup.steps * (1 if mode == "synchronous" else workers) for mode in MODES}
    with contextlib.ExitStack() as stack:
        lane = stack.enter_context(lanes.Lane("chief", workers=1, environment=_ONE_THREAD))
        on_turn("starting")
        (pids,) = lane.call(f"{_ARMS}:start", workers=workers, servers=SERVERS, bounds=bounds(workers))
        for mode in MODES:
            on_turn(f"{mode}, warming up")
            warm_up = _WARM_UP_BATCHES_PER_WORKER * (1 if mode == "synchronous" else workers)
            lane.call(f"{_ARMS}:prepare", mode=mode, batch_size=setup.batch_size, steps=warm_up)
        if workers > 1:
            on_turn("the slow worker alone")
            slow_down = _slow_down(lane, stack, workers - 1, pids[-1], setup.slow_factor)
        for turn in range(setup.rounds):
            first = turn % len(MODES)
            for mode in MODES[first:] + MODES[:first]:
                on_turn(f"{mode}, round {turn + 1} of {setup.rounds}")
                (found,) = lane.call(f"{_ARMS}:measure", mode=mode, steps=steps[mode])
                seconds[mode].append(found["seconds"])
                staleness[mode].update({int(each): count for each, count in found["staleness"].items()})
        lane.call(f"{_ARMS}:end")
    return Crowd(
        workers=workers,
        slow_down=slow_down,
        examples=setup.steps * workers * setup.batch_size,
        updates=steps,
        seconds=seconds,
        staleness={mode: dict(sorted(counts.items())) for mode, counts in staleness.items()},
    )


def _slow_down(lane: lanes.Lane, stack: contextlib.ExitStack, worker: int, pid: int, factor: float) -> float:
    """Make a worker slow as long as the stack is there; return how many times slower it computes."""

    def alone() -> float:
        return median(lane.call(f"{_ARMS}:alone", worker=worker)[0] for _ in range(_MEASUREMENTS_ALONE))

    before = alone()
    stack.enter_context(Throttle(pid, factor))
    return alone() / before
