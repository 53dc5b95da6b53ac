"""What recording adds to a step of `fit`: the same steps with it and without, in turns, part by part."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import comb
from statistics import median
from typing import Any

from tfdist.bench.workers import lanes
from tfdist.cluster import strategy_table
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles
from tfdist.validation import integer, one_of

__all__ = ["ARMS", "STRATEGIES", "Report", "Setup", "interval", "run"]

#: what is recorded in an arm; each has what the ones before it have
ARMS = ("nothing", "observers", "stamps", "everything")
#: of workers; what recording costs elsewhere is no more
STRATEGIES = tuple(
    name
    for name in strategy_table.names()
    if strategy_table.get(name).is_replicated and strategy_table.get(name).processes == "workers"
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        strategy: of `STRATEGIES`.
        model: a name from `tfdist.bench.workers.models.MODELS`.
        workers: number of processes.
        batch_size: examples per step over all of them.
        warm_up_steps: of each arm before the first measurement.
        steps: per measurement.
        rounds: measurements of each arm.
    """

    strategy: str = "multi-worker"
    model: str = "convolutional"
    workers: int = 2
    batch_size: int = 64
    warm_up_steps: int = 20
    steps: int = 20
    rounds: int = 100

    def __post_init__(self) -> None:
        one_of("strategy", self.strategy, STRATEGIES)
        for name in ("workers", "batch_size", "warm_up_steps", "steps", "rounds"):
            integer(name, getattr(self, name), minimum=1)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it.

    Attributes:
        setup: what was measured.
        seconds: of a step of each arm, one per round; the slowest worker's.
        processor: seconds for which a step kept processors busy, the mean of the workers: what other programs take
            from a worker is not in it, and what workers wait for each other is, as far as they look again and again.
        flushing: processor seconds of a step in which rows were written; the worker's that wrote longest.
        inside: seconds that an arm adds to a step at most, one per round: those in which the thread that steps did what
            the recorder does, and what stamps add to a function in which nothing hides them; of the slowest worker.
        machine: processor, cores, versions, time and load.
    """

    setup: Setup
    seconds: Mapping[str, Sequence[float]]
    processor: Mapping[str, Sequence[float]]
    flushing: Mapping[str, Sequence[float]]
    inside: Mapping[str, Sequence[float]]
    machine: Mapping[str, str]

    def added(self, arm: str, of: str = "seconds") -> list[float]:
        """Return what an arm adds to a step of which nothing is recorded, as a part of it, one per round.

        Args:
            arm: of `ARMS`.
            of: "seconds" or "processor".
        """
        found = getattr(self, of)
        return [one / plain - 1 for one, plain in zip(found[arm], found["nothing"], strict=True)]

    def added_seconds(self) -> dict[str, Quartiles]:
        """Return the processor seconds that each arm adds to a step of the one before it, by the arm."""
        found = self.processor
        return {
            arm: quartiles([one - before for one, before in zip(found[arm], found[less], strict=True)])
            for less, arm in pairwise(ARMS)
        }

    def most(self, arm: str) -> list[float]:
        """Return what an arm adds to a step at most, as a part of the step of which nothing is recorded, per round.

        The step is the median of all rounds: what is divided by it has no noise of a step.
        """
        return [one / median(self.seconds["nothing"]) for one in self.inside[arm]]

    def to_json(self) -> str:
        """Return the report as JSON."""
        added = {
            of: {
                arm: {**asdict(quartiles(self.added(arm, of))), "interval": interval(self.added(arm, of))}
                for arm in ARMS[1:]
            }
            for of in ("seconds", "processor")
        }
        more = {arm: asdict(one) for arm, one in self.added_seconds().items()}
        most = {arm: asdict(quartiles(self.most(arm))) for arm in ARMS[1:]}
        found = {**asdict(self), "added": added, "added_processor_seconds": more, "added_at_most": most}
        return json.dumps(found, indent=2)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return between which values the median of all possible ones lies, with a probability of 95 % at least.

    Two of the values, counted from both ends, whatever their distribution is; of few values the first and the last.

    Example:
        >>> interval([float(number) for number in range(20)])
        (5.0, 14.0)
    """
    ordered, count = sorted(values), len(values)
    place, outside = 0, 2  # of 2**count equally probable ways in which values lie below and above the median
    while place < (count - 1) // 2 and 20 * (outside + 2 * comb(count, place + 1)) <= 2**count:
        place += 1
        outside += 2 * comb(count, place)
    return ordered[place], ordered[-1 - place]


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda arm, number: None) -> Report:
    """Measure all arms in turns, in the same processes, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each arm and round (0: warming up) before it is measured.
    Raises:
        MissingDependencyError: the strategy's engine is not installed.
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> interval(run(Setup()).added("everything"))             # doctest: +SKIP
        (-0.001, 0.004)
    """
    seconds, processor, flushing, inside = ({arm: list[float]() for arm in ARMS} for _ in range(4))
    about = machine.describe()
    with lanes.Lane(setup.strategy, workers=setup.workers) as lane:

        def call(function: str, **arguments: Any) -> list[Any]:
            return lane.call(f"tfdist.bench.monitor.arms:{function}", **arguments)

        what = {"strategy": setup.strategy, "model": setup.model, "global_batch_size": setup.batch_size}
        for arm in ARMS:
            on_round(arm, 0)
            call("prepare", arm=arm, steps=setup.warm_up_steps, **what)
        call("prepare_graphs", model=setup.model)
        for number in range(setup.rounds):
            # forwards and backwards, so that each arm is as often before another one as behind it
            turn = number // 2 % len(ARMS)
            order = (*ARMS[turn:], *ARMS[:turn])
            for arm in order if number % 2 == 0 else reversed(order):
                on_round(arm, number + 1)
                found = call("measure", arm=arm, steps=setup.steps)
                seconds[arm].append(max(one["seconds"] for one in found) / setup.steps)
                processor[arm].append(sum(one["processor"] for one in found) / len(found) / setup.steps)
                flushing[arm].append(max(one["flushing"] for one in found) / setup.steps)
                inside[arm].append(max(one["inside"] for one in found) / setup.steps)
            graphs = call("measure_graphs")
            for arm in graphs[0]:
                inside[arm][-1] += max(one[arm] for one in graphs)
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, seconds=seconds, processor=processor, flushing=flushing, inside=inside, machine=about)
