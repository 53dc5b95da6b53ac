"""A transformer over two processes of one host beside one process, and beside DTensor, in turns.

Each process has one processor. So the efficiency is the time of one process over twice that of two; what two processes
add up between them bounds it. DTensor has no Keras layers: it runs the blocks without attention, beside the same under
model parallelism.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tfdist.bench.workers import lanes
from tfdist.bench.workers.transformer import SHAPE, Transformer
from tfdist.cluster.strategy_table import MESH_VARIABLE
from tfdist.errors import ConfigError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles, ratio

__all__ = ["ARMS", "Report", "Setup", "limit", "run", "sums"]

_WORKERS = 2
_MESH = f"batch=1,model={_WORKERS}"
#: arm -> network, lane and number of processes
ARMS: Mapping[str, tuple[str, str, int]] = {
    "one process": ("transformer", "tensorflow", 1),
    "two processes": ("transformer", "model-parallel", _WORKERS),
    "one process, no attention": ("perceptron", "tensorflow", 1),
    "two processes, no attention": ("perceptron", "model-parallel", _WORKERS),
    "DTensor, no attention": ("dtensor", "tensorflow", _WORKERS),
}


@dataclass(frozen=True, kw_only=True)
class Setup(Transformer):
    """What is measured: a `Transformer`, which two processes share."""

    words: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("heads", "width", "words"):
            if getattr(self, name) % _WORKERS:
                raise ConfigError(f"{name} is {getattr(self, name)}; two processes share them. Choose an even number.")

    @property
    def numbers(self) -> int:
        """Numbers of an activation between two layers."""
        return self.batch_size * self.length * self.width


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it.

    Attributes:
        setup: what was measured.
        seconds: arm -> seconds per step, one per round; the slowest process's.
        sum_seconds: of the sum of an activation over two processes, one per round.
        machine: processor, cores, versions, time and load.
    """

    setup: Setup
    seconds: Mapping[str, Sequence[float]]
    sum_seconds: Sequence[float]
    machine: Mapping[str, str]

    def efficiency(self, kind: str = "") -> Quartiles:
        """Return the time of one process over twice that of two.

        Args:
            kind: ", no attention", or nothing.
        """
        one, two = self.seconds[f"one process{kind}"], self.seconds[f"two processes{kind}"]
        return ratio(one, [_WORKERS * each for each in two])

    def limit(self, kind: str = "") -> Quartiles:
        """Return the efficiency if nothing but the sums came on top of half of the computing."""
        count = sums(self.setup.blocks, attention=not kind)
        pairs = zip(self.seconds[f"one process{kind}"], self.sum_seconds, strict=True)
        return quartiles([limit(seconds, count * one) for seconds, one in pairs])

    @property
    def over_dtensor(self) -> Quartiles:
        """The speed beside DTensor: its time over that of model parallelism."""
        return ratio(self.seconds["DTensor, no attention"], self.seconds["two processes, no attention"])

    def to_json(self) -> str:
        """Return the report as JSON, with efficiencies and limits."""
        derived = {
            "efficiency": {kind or "transformer": asdict(self.efficiency(kind)) for kind in ("", ", no attention")},
            "limit": {kind or "transformer": asdict(self.limit(kind)) for kind in ("", ", no attention")},
            "median_ms": {arm: 1000 * median(self.seconds[arm]) for arm in self.seconds},
            "speed_over_dtensor": asdict(self.over_dtensor),
        }
        return json.dumps({**asdict(self), **derived}, indent=2)


def sums(blocks: int, *, attention: bool) -> int:
    """Return how many activations two processes add up in a step.

    The outputs of a layer by rows in the forward pass, and in the backward pass the gradients by what a layer by
    columns takes; an attention takes two, query and value, and words and logits are one each.

    Example:
        >>> sums(8, attention=True), sums(8, attention=False)
        (42, 16)
    """
    return 5 * blocks + 2 if attention else 2 * blocks


def limit(seconds: float, sums_seconds: float) -> float:
    """Return the parallel efficiency of two processes that share all computing and wait for their sums.

    Args:
        seconds: of one process.
        sums_seconds: of what two add up in a step.

    Example:
        >>> limit(1.0, 0.0), limit(1.0, 0.5)
        (1.0, 0.5)
    """
    return seconds / (_WORKERS * (seconds / _WORKERS + sums_seconds))


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda arm, number: None) -> Report:
    """Measure all arms in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each arm and round before it is measured; 0: warming up.
    Raises:
        TfdistError: a process failed; the message has its traceback.

    Example:
        >>> run(Setup(rounds=3)).efficiency()                            # doctest: +SKIP
    """
    about, order = machine.describe(), list(ARMS)
    shape = {name: getattr(setup, name) for name in SHAPE}
    seconds: dict[str, list[float]] = {arm: [] for arm in order}
    of_sums: list[float] = []
    with contextlib.ExitStack() as stack:
        found = {arm: stack.enter_context(_lane(arm)) for arm in order}

        def call(arm: str, function: str, **arguments: Any) -> float:
            with lanes.turn(found[arm], found.values()) as lane:
                return max(
                    filter(None, lane.call(f"tfdist.bench.model_parallel.arms:{function}", **arguments)), default=0
                )

        for arm in order:
            on_round(arm, 0)
            network, lane, _ = ARMS[arm]
            call(arm, "prepare", network=network, mesh=_MESH if lane == "model-parallel" else None, steps=2, **shape)
        call("two processes", "sum_seconds", count=setup.numbers, times=1)
        for number in range(setup.rounds):
            for arm in order[number % len(order) :] + order[: number % len(order)]:
                on_round(arm, number + 1)
                seconds[arm].append(call(arm, "measure", steps=setup.steps) / setup.steps)
            of_sums.append(call("two processes", "sum_seconds", count=setup.numbers, times=2))
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, seconds=seconds, sum_seconds=of_sums, machine=about)


def _lane(arm: str) -> lanes.Lane:
    _, name, workers = ARMS[arm]
    environment = {MESH_VARIABLE: _MESH} if name == "model-parallel" else {}
    return lanes.Lane(name, workers=workers, environment=environment)
