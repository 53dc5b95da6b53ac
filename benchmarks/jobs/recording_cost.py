"""The cost of recording in a step of `fit`: the same steps with and without it, in turns, part by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import comb
from statistics import median
from typing import Any

from tfdist.bench.suite import (
    MODELS,
    Quartiles,
    Report,
    Suite,
    Table,
    Told,
    option,
    quartiles,
    rotated,
    rounds,
    turn,
    untold,
)
from tfdist.bench.workers import lanes
from tfdist.cli.bench.suite_command import suite_command
from tfdist.cluster import strategy_table
from tfdist.planner import machine

__all__ = ["ARMS", "STRATEGIES", "RecordingBench", "RecordingReport", "both_ways", "command", "interval"]

#: the records of an arm; each arm includes those before it
ARMS = ("nothing", "observers", "stamps", "everything")
#: strategies of several workers; under others, recording costs no more
STRATEGIES = tuple(
    name
    for name in strategy_table.names()
    if strategy_table.get(name).is_replicated and strategy_table.get(name).processes == "workers"
)
_MORE = {"observers": "the host", "stamps": "the graph", "everything": "the norm"}
_WORKERS = "benchmarks.jobs.recording_workers"


def both_ways(arms: Sequence[str], number: int) -> list[str]:
    """Return the arms forwards and backwards in turns, so that each is as often before another one as after it."""
    order = rotated(arms, number // 2)
    return order if number % 2 == 0 else order[::-1]


@dataclass(frozen=True, kw_only=True)
class RecordingBench(Suite):
    """Measure the time that `tfdist run --monitor` adds to a step of `fit`, in the same processes.

    \b
    nothing       not recorded
    observers     what the host notes of a step and writes twice a second
    stamps        also the times that the graph takes
    everything    also the norm of the gradient, in one step of twenty: what --monitor does

    Each arm is compared with the unrecorded step of the same round, in wall time and in CPU time, which other programs
    do not change. The interval contains the median with a probability of 95 %. If it contains 0, no cost was found.

    The last table is free of the noise of steps. It has the time of the recorder's work in the stepping thread, and the
    time that stamps add to a function without other work.
    """

    strategy: str = option("multi-worker", "Of workers.", choices=STRATEGIES)
    model: str = option("convolutional", "What is trained.", choices=MODELS)
    workers: int = option(2, "Processes.")
    batch_size: int = option(64, "Of all workers.")
    warm_up_steps: int = option(20, "Steps to warm up.")
    steps: int = option(20, "Steps per measurement.")
    rounds: int = option(100, "Measurements each.")

    def run(self, told: Told = untold) -> "RecordingReport":
        seconds, processor, flushing, inside = ({arm: list[float]() for arm in ARMS} for _ in range(4))
        what = {"strategy": self.strategy, "model": self.model, "global_batch_size": self.batch_size}
        with machine.observed() as about, lanes.Lane(self.strategy, workers=self.workers) as lane:
            for arm in ARMS:
                told(f"{arm}, {turn(0, self.rounds)}")
                lane.call(f"{_WORKERS}:prepare", arm=arm, steps=self.warm_up_steps, **what)
            lane.call(f"{_WORKERS}:prepare_graphs", strategy=self.strategy, model=self.model)
            for number, order in rounds(ARMS, self.rounds, order=both_ways):
                for arm in order:
                    told(f"{arm}, {turn(number, self.rounds)}")
                    found = lane.call(f"{_WORKERS}:measure", arm=arm, steps=self.steps)
                    seconds[arm].append(max(one["seconds"] for one in found) / self.steps)
                    processor[arm].append(sum(one["processor"] for one in found) / len(found) / self.steps)
                    flushing[arm].append(max(one["flushing"] for one in found) / self.steps)
                    inside[arm].append(max(one["inside"] for one in found) / self.steps)
                graphs = lane.call(f"{_WORKERS}:measure_graphs")
                for arm in graphs[0]:
                    inside[arm][-1] += max(one[arm] for one in graphs)
        return RecordingReport(
            setup=self, seconds=seconds, processor=processor, flushing=flushing, inside=inside, machine=about
        )


@dataclass(frozen=True, kw_only=True)
class RecordingReport(Report):
    """The seconds per step of each arm."""

    setup: RecordingBench
    seconds: Mapping[str, Sequence[float]]  # of a step of each arm, one per round; the slowest worker's
    # CPU seconds of a step, the mean of the workers. They include the time in which workers poll for each other, but no
    # time of other programs
    processor: Mapping[str, Sequence[float]]
    flushing: Mapping[str, Sequence[float]]  # CPU seconds of a step for writing rows, of the worker that wrote longest
    # the most seconds that an arm adds to a step, one per round, of the slowest worker. They are those of the recorder
    # in the thread of the step, and those of the stamps in a function in which nothing hides them
    inside: Mapping[str, Sequence[float]]

    def added(self, arm: str, of: str = "seconds") -> list[float]:
        """Return the part that an arm adds to an unrecorded step, one per round, of "seconds" or "processor"."""
        found = getattr(self, of)
        return [one / plain - 1 for one, plain in zip(found[arm], found["nothing"], strict=True)]

    def added_seconds(self) -> dict[str, Quartiles]:
        """Return the CPU seconds that each arm adds to a step of the previous arm, by the arm."""
        found = self.processor
        return {
            arm: quartiles([one - before for one, before in zip(found[arm], found[less], strict=True)])
            for less, arm in pairwise(ARMS)
        }

    def most(self, arm: str) -> list[float]:
        """Return the largest part that an arm adds to an unrecorded step, one per round.

        The unrecorded step is the median of all rounds, so its noise does not enter.
        """
        return [one / median(self.seconds["nothing"]) for one in self.inside[arm]]

    def derived(self) -> dict[str, Any]:
        added = {
            of: {
                arm: {**asdict(quartiles(self.added(arm, of))), "interval": interval(self.added(arm, of))}
                for arm in ARMS[1:]
            }
            for of in ("seconds", "processor")
        }
        most = {arm: quartiles(self.most(arm)) for arm in ARMS[1:]}
        return {"added": added, "added_processor_seconds": self.added_seconds(), "added_at_most": most}

    def shown(self) -> Iterator[Table | str]:
        rows, parts, most, more = list[list[str]](), list[list[str]](), list[list[str]](), self.added_seconds()
        for arm in ARMS:
            cells = [arm]
            for of, seconds in (("seconds", self.seconds), ("processor", self.processor)):
                cells.append(f"{1e3 * median(seconds[arm]):.2f}")
                if arm == "nothing":
                    cells += ["", ""]
                    continue
                low, high = interval(self.added(arm, of))
                cells += [_shown(quartiles(self.added(arm, of)), 100, 2), f"{100 * low:.2f} to {100 * high:.2f}"]
            rows.append(cells)
            if arm in more:
                writing = f"{1e6 * median(self.flushing[arm]):.0f}"
                parts.append([f"{_MORE[arm]} adds", _shown(more[arm], 1e6, 0), writing])
                microseconds, share = quartiles(self.inside[arm]), quartiles(self.most(arm))
                most.append([arm, _shown(microseconds, 1e6, 0), _shown(share, 100, 3)])
        yield Table(("recorded", "ms", "added, %", "interval", "processor ms", "added, %", "interval"), rows)
        yield Table(("", "processor µs of a step", "of that, writing rows"), parts)
        yield Table(("added at most", "µs of a step", "of a step, %"), most)
        setup = self.setup
        yield (
            f"Of a step: {setup.strategy}, {setup.workers} workers, {setup.model}, global batch {setup.batch_size}; "
            f"{setup.rounds} rounds of {setup.steps} steps; median [lower-upper quartile]; {self.ran_on()}"
        )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that contains the median of all possible values, with a probability of at least 95 %.

    Its ends are two of the values, counted from both ends, for any distribution. For few values they are the first and
    the last.

    Example:
        >>> interval([float(number) for number in range(20)])
        (5.0, 14.0)
    """
    ordered, count = sorted(values), len(values)
    place, outside = 0, 2  # number of the 2**count equally probable ways in which values are below and above the median
    while place < (count - 1) // 2 and 20 * (outside + 2 * comb(count, place + 1)) <= 2**count:
        place += 1
        outside += 2 * comb(count, place)
    return ordered[place], ordered[-1 - place]


def _shown(found: Quartiles, factor: float, digits: int) -> str:
    middle, lower, upper = (f"{factor * one:.{digits}f}" for one in (found.median, found.lower, found.upper))
    return f"{middle} [{lower} to {upper}]"


command = suite_command(
    "monitor",
    RecordingBench,
    examples={
        "python -m benchmarks monitor": "a convolutional network: minutes",
        "python -m benchmarks monitor --model perceptron --steps 5 --rounds 40": "25 M parameters: the norm weighs",
        "python -m benchmarks monitor --model small --steps 100": "steps of a few milliseconds",
    },
    page="monitoring",
)
