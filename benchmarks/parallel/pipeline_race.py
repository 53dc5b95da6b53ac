"""A transformer in two stages on two processes of one host, by several schedules, and in one process, in turns.

Each process has one processor. The ideal step has balanced stages, and takes half of the time of one process, plus the
bubble. A schedule reaches a part of this ideal, for two reasons. Micro-batches are smaller matrices, on which a
processor is slower. So one process that computes micro-batch after micro-batch is measured too, by the same strategy
with one stage. Also, processors share resources such as memory, so two processes are slower than one. So two processes
that each train the whole model are measured as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.parallel.model_parallel_race import TransformerSuite
from tfdist.bench.suite import Quartiles, Report, Table, Told, in_turns, option, ratio, turn, untold
from tfdist.bench.workers import lanes
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.planner import machine, schedules

__all__ = ["ALONE", "BESIDE", "IN_PARTS", "SCHEDULES", "PipelineBench", "PipelineReport", "command", "ideal"]

_STAGES = 2
ALONE = "one process"
#: two independent processes that each train the whole model, and share only the machine
BESIDE = "two at once"
#: one process that computes one micro-batch after the other
IN_PARTS = "in micro-batches"
SCHEDULES = ("1f1b", "eager-1f1b", "gpipe")


_TRAINING = "benchmarks.parallel.pipeline_training"


@dataclass(frozen=True, kw_only=True)
class PipelineBench(TransformerSuite):
    """Train a transformer in two stages over two processes, by three schedules, compared with one process.

    Each process has one processor. The ideal step takes half of the time of one process, and the bubble of the
    schedule. The table has the ideal over the measured step. One process that computes micro-batch after micro-batch
    shows the cost of smaller matrices. Two processes that each train the whole model show the cost of shared memory.
    The memory of a process is its peak, minus its memory before there was a model.
    """

    batch_size: int = option(32, "Texts of a step.")
    microbatches: int = option(8, "Of a batch.")
    steps: int = option(2, "Steps per measurement.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.microbatches:
            raise ConfigError(
                f"batch_size is {self.batch_size} for {self.microbatches} micro-batches, which would differ in size. "
                "Choose a multiple of the micro-batches."
            )
        if self.blocks % _STAGES:
            raise ConfigError(f"blocks is {self.blocks}; two stages share them. Choose an even number.")

    def run(self, told: Told = untold) -> "PipelineReport":
        order = [ALONE, BESIDE, IN_PARTS, *SCHEDULES]
        with machine.observed() as about, lanes.running({arm: _lane(arm) for arm in order}) as call:

            def measure(arm: str, number: int) -> float:
                return max(call(arm, f"{_TRAINING}:measure", steps=self.steps)) / self.steps

            for arm in order:
                told(f"{arm}, {turn(0, self.rounds)}")
                how = {
                    "schedule": arm if arm in SCHEDULES else SCHEDULES[0] if arm == IN_PARTS else None,
                    "stages": 1 if arm == IN_PARTS else _STAGES,
                    "microbatches": self.microbatches,
                }
                call(arm, f"{_TRAINING}:prepare", **how, steps=2, **self.shape())
            seconds = in_turns(order, measure, count=self.rounds, told=told)
            grown = {arm: call(arm, f"{_TRAINING}:grown_bytes") for arm in order}
        return PipelineReport(setup=self, seconds=seconds, grown_bytes=grown, machine=about)


@dataclass(frozen=True, kw_only=True)
class PipelineReport(Report):
    """The seconds per step and the memory of each arm."""

    setup: PipelineBench
    seconds: Mapping[str, Sequence[float]]  # arm -> seconds per step, one per round; the slowest process's
    # arm -> for each process, its peak memory minus its memory without a model
    grown_bytes: Mapping[str, Sequence[int]]

    def bubble(self, schedule: str) -> float:
        """Return the part of the time for which stages wait for each other under the schedule."""
        return schedules.bubble(schedules.named(schedule, stages=_STAGES, microbatches=self.setup.microbatches))

    def of_ideal(self, schedule: str, arm: str = ALONE) -> Quartiles:
        """Return the ideal step's time over that of a schedule; its computing takes as long as that of an arm."""
        wanted = [ideal(each, _STAGES, self.bubble(schedule)) for each in self.seconds[arm]]
        return ratio(wanted, self.seconds[schedule])

    def derived(self) -> dict[str, Any]:
        ideals = {"of_ideal": ALONE, "of_microbatches": IN_PARTS, "of_machine": BESIDE}
        return {
            **{name: {one: self.of_ideal(one, arm) for one in SCHEDULES} for name, arm in ideals.items()},
            "median_ms": {arm: 1000 * median(each) for arm, each in self.seconds.items()},
        }

    def shown(self) -> Iterator[Table | str]:
        setup, arms, none = self.setup, (ALONE, BESIDE, IN_PARTS, *SCHEDULES), ("", "", "")
        parts = (
            ("of the ideal", ALONE),
            ("  of the same micro-batches", IN_PARTS),
            ("  at the speed of two at once", BESIDE),
        )
        yield Table(
            ("", *arms),
            [
                ["ms per step", *(f"{1000 * median(self.seconds[arm]):.0f}" for arm in arms)],
                ["bubble of the schedule", *none, *(f"{self.bubble(one):.1%}" for one in SCHEDULES)],
                *([title, *none, *(str(self.of_ideal(one, arm)) for one in SCHEDULES)] for title, arm in parts),
                [
                    "memory of each process, MB",
                    *(", ".join(f"{one / 1e6:.0f}" for one in self.grown_bytes[arm]) for arm in arms),
                ],
            ],
        )
        yield (
            f"{setup.blocks} blocks of width {setup.width}, {setup.batch_size} texts of {setup.length} words in "
            f"{setup.microbatches} micro-batches; {setup.rounds} rounds of {setup.steps} steps; median [lower-upper "
            f"quartile]; {self.ran_on()}"
        )


def ideal(seconds: float, stages: int, bubble: float) -> float:
    """Return the seconds of a step whose stages share all computing, and wait for each other only in the bubble.

    Example:
        >>> ideal(1.0, 2, 0.0), ideal(1.0, 2, 0.5)
        (0.5, 1.0)
    """
    return seconds / stages / (1 - bubble)


def _lane(arm: str) -> lanes.Lane:
    name = "pipeline" if arm in (IN_PARTS, *SCHEDULES) else "tensorflow"
    return lanes.Lane(name, workers=1 if arm in (ALONE, IN_PARTS) else _STAGES)


command = suite_command(
    "pipeline",
    PipelineBench,
    examples={
        "python -m benchmarks pipeline": "8 blocks: minutes",
        "python -m benchmarks pipeline --microbatches 16": "a smaller bubble",
        "python -m benchmarks pipeline --blocks 2 --rounds 3": "a glance",
    },
    page="pipeline-schedules",
)
