"""A transformer in two stages on two processes of one host, by several schedules, beside one process, in turns.

Each process has one processor. If stages are balanced and nothing but the bubble came on top, a step would take half of
the time of one process, and the bubble: that is the ideal, of which a schedule has a part. Micro-batches are smaller
matrices, with which a processor does less in a second: so one process that computes micro-batch after micro-batch, by
the same strategy with one stage, is measured too. And what processors share, such as memory, makes two processes slower
than one: so are two that train the whole model each.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tfdist.bench.workers import lanes
from tfdist.bench.workers.transformer import SHAPE, Transformer
from tfdist.errors import ConfigError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, ratio
from tfdist.parallel import schedules

__all__ = ["ALONE", "BESIDE", "IN_PARTS", "SCHEDULES", "Report", "Setup", "ideal", "run"]

_STAGES = 2
ALONE = "one process"
#: two processes that each train the whole model, and have nothing to do with each other but the machine
BESIDE = "two at once"
#: one process that computes one micro-batch after the other
IN_PARTS = "in micro-batches"
SCHEDULES = ("1f1b", "eager-1f1b", "gpipe")


@dataclass(frozen=True, kw_only=True)
class Setup(Transformer):
    """What is measured: a `Transformer` of few words, so that the blocks decide how long a stage takes.

    Attributes:
        microbatches: into which a batch is cut.
    """

    batch_size: int = 32
    microbatches: int = 8
    steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.microbatches:
            raise ConfigError(
                f"batch_size is {self.batch_size} for {self.microbatches} micro-batches, which would differ in size. "
                "Choose a multiple of the micro-batches."
            )
        if self.blocks % _STAGES:
            raise ConfigError(f"blocks is {self.blocks}; two stages share them. Choose an even number.")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it.

    Attributes:
        setup: what was measured.
        seconds: arm -> seconds per step, one per round; the slowest process's.
        grown_bytes: arm -> of each process, by how much it was larger at its peak than without a model.
        machine: processor, cores, versions, time and load.
    """

    setup: Setup
    seconds: Mapping[str, Sequence[float]]
    grown_bytes: Mapping[str, Sequence[int]]
    machine: Mapping[str, str]

    def bubble(self, schedule: str) -> float:
        """Return the part of the time in which stages wait for each other, by the schedule."""
        return schedules.bubble(schedules.named(schedule, stages=_STAGES, microbatches=self.setup.microbatches))

    def of_ideal(self, schedule: str) -> Quartiles:
        """Return the ideal step's time over that of a schedule."""
        wanted = [ideal(each, _STAGES, self.bubble(schedule)) for each in self.seconds[ALONE]]
        return ratio(wanted, self.seconds[schedule])

    def of_machine(self, schedule: str) -> Quartiles:
        """Return the same where one process takes as long as beside another one, with which it shares the machine."""
        wanted = [ideal(each, _STAGES, self.bubble(schedule)) for each in self.seconds[BESIDE]]
        return ratio(wanted, self.seconds[schedule])

    def of_microbatches(self, schedule: str) -> Quartiles:
        """Return the same where one process computes the same micro-batches, one after another."""
        wanted = [ideal(each, _STAGES, self.bubble(schedule)) for each in self.seconds[IN_PARTS]]
        return ratio(wanted, self.seconds[schedule])

    def to_json(self) -> str:
        """Return the report as JSON, with the parts of the ideal."""
        derived = {
            "of_ideal": {one: asdict(self.of_ideal(one)) for one in SCHEDULES},
            "of_microbatches": {one: asdict(self.of_microbatches(one)) for one in SCHEDULES},
            "of_machine": {one: asdict(self.of_machine(one)) for one in SCHEDULES},
            "median_ms": {arm: 1000 * median(each) for arm, each in self.seconds.items()},
        }
        return json.dumps({**asdict(self), **derived}, indent=2)


def ideal(seconds: float, stages: int, bubble: float) -> float:
    """Return how long a step takes in stages that share all computing and wait for each other in the bubble alone.

    Args:
        seconds: of a step on one process.
        stages: how many.
        bubble: the part of the step in which a stage waits.

    Example:
        >>> ideal(1.0, 2, 0.0), ideal(1.0, 2, 0.5)
        (0.5, 1.0)
    """
    return seconds / stages / (1 - bubble)


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda arm, number: None) -> Report:
    """Measure all arms in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each arm and round before it is measured; 0: warming up.
    Raises:
        TfdistError: a process failed; the message has its traceback.

    Example:
        >>> run(Setup(rounds=3)).of_ideal("1f1b")                        # doctest: +SKIP
    """
    about, order = machine.describe(), [ALONE, BESIDE, IN_PARTS, *SCHEDULES]
    shape = {name: getattr(setup, name) for name in SHAPE}
    seconds: dict[str, list[float]] = {arm: [] for arm in order}
    with contextlib.ExitStack() as stack:
        found = {arm: stack.enter_context(_lane(arm)) for arm in order}

        def call(arm: str, function: str, **arguments: Any) -> list[Any]:
            with lanes.turn(found[arm], found.values()) as lane:
                return list(lane.call(f"tfdist.bench.pipeline.arms:{function}", **arguments))

        for arm in order:
            on_round(arm, 0)
            schedule = arm if arm in SCHEDULES else SCHEDULES[0] if arm == IN_PARTS else None
            stages = 1 if arm == IN_PARTS else _STAGES
            call(arm, "prepare", schedule=schedule, stages=stages, microbatches=setup.microbatches, steps=2, **shape)
        for number in range(setup.rounds):
            for arm in order[number % len(order) :] + order[: number % len(order)]:
                on_round(arm, number + 1)
                seconds[arm].append(max(call(arm, "measure", steps=setup.steps)) / setup.steps)
        grown = {arm: call(arm, "grown_bytes") for arm in order}
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, seconds=seconds, grown_bytes=grown, machine=about)


def _lane(arm: str) -> lanes.Lane:
    name = "pipeline" if arm in (IN_PARTS, *SCHEDULES) else "tensorflow"
    return lanes.Lane(name, workers=1 if arm in (ALONE, IN_PARTS) else _STAGES)
