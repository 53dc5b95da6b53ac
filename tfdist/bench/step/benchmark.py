"""Steps per second: tfdist with `fit` beside its peers in hand-written loops, in turns."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.bench.workers import lanes
from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, Spread, ratio, spread
from tfdist.validation import integer, one_of

__all__ = ["PEERS", "STRATEGIES", "Setup", "StepReport", "arms", "run"]

PEERS = ("tensorflow loop", "horovod loop")
#: which a loop by hand can be measured beside; `bench.parameter_server` and `bench.sharded` do the rest
STRATEGIES = tuple(name for name in strategy_table.names() if strategy_table.get(name).is_replicated)

# arm -> the lane whose processes run it. TensorFlow's strategy and tfdist's cannot both be the multi-worker one of a
# process, and the ring starts Horovod with settings that are good for it and not for others.
_LANES: Mapping[str, str] = {
    "tensorflow loop": "tensorflow",
    "horovod loop": "horovod",
    "tfdist loop": "tfdist",
    "tfdist fit": "tfdist",
    "tfdist fit, several steps": "tfdist",
}


def arms(strategy: str, *, steps_per_execution: int = 1, horovod: bool = True) -> dict[str, str]:
    """Return what is measured for a strategy, with the lane of each: a peer's name, or the strategy's.

    Args:
        strategy: a name from `STRATEGIES`.
        steps_per_execution: steps in one graph, of the last arm; 1: there is no such arm.
        horovod: whether it is installed; the ring asks for it in any case.

    Example:
        >>> arms("mirrored")
        {'tensorflow loop': 'tensorflow', 'tfdist loop': 'mirrored', 'tfdist fit': 'mirrored'}
    """
    left_out = set() if steps_per_execution > 1 else {"tfdist fit, several steps"}
    if strategy_table.get(strategy).processes != "workers" or not (horovod or strategy == "ring"):
        left_out.add("horovod loop")
    return {arm: strategy if lane == "tfdist" else lane for arm, lane in _LANES.items() if arm not in left_out}


_COUNTS = (
    *("workers", "replicas_per_worker", "global_batch_size"),
    *("warm_up_steps", "steps", "rounds", "steps_per_execution"),
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        strategy: a name from `STRATEGIES`.
        workers: number of processes.
        replicas_per_worker: replicas in each.
        model: a name from `tfdist.bench.workers.models.MODELS`.
        global_batch_size: examples per step over all replicas; a multiple of the number of replicas.
        warm_up_steps: of each arm before the first measurement.
        steps: steps per measurement.
        rounds: measurements of each arm.
        collectives: what carries the tensors of "multi-worker", of `strategy_table.COLLECTIVES`; None: its default.
        steps_per_execution: steps in one graph, of an arm more; 1: without that arm.
    """

    strategy: str
    workers: int
    replicas_per_worker: int
    model: str
    global_batch_size: int
    warm_up_steps: int
    steps: int
    rounds: int
    collectives: str | None = None
    steps_per_execution: int = 1

    def __post_init__(self) -> None:
        one_of(
            "strategy", self.strategy, STRATEGIES, hint="`tfdist bench parameter-server` measures parameter servers."
        )
        for name in _COUNTS:
            integer(name, getattr(self, name), minimum=1)
        if self.collectives is not None:
            one_of("collectives", self.collectives, strategy_table.COLLECTIVES)
            if self.strategy != "multi-worker":
                raise ConfigError(
                    f"collectives is {self.collectives!r}, and the strategy is {self.strategy!r}; only 'multi-worker' "
                    "has a choice of them. Leave collectives out."
                )
        if self.steps % self.steps_per_execution:
            raise ConfigError(
                f"steps is {self.steps} and steps_per_execution {self.steps_per_execution}; a measurement must have a "
                "multiple of the steps that are done at once. Choose one."
            )
        replicas = self.workers * self.replicas_per_worker
        if self.global_batch_size % replicas:
            raise ConfigError(
                f"the global batch has {self.global_batch_size} examples for {replicas} replicas of {self.strategy!r}; "
                f"the peers' loops take as many on each. Choose a multiple of {replicas}."
            )


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Seconds of each arm in each round, and the machine.

    Attributes:
        setup: what was measured.
        seconds: arm -> seconds per step, one per round; the slowest worker's.
        machine: processor, cores, versions, time and load.
    """

    setup: Setup
    seconds: Mapping[str, Sequence[float]]
    machine: Mapping[str, str]

    def speed(self, peer: str) -> Quartiles | None:
        """Return steps per second of tfdist's `fit` over those of a peer's loop; None where it was not measured."""
        return ratio(self.seconds[peer], self.seconds["tfdist fit"]) if peer in self.seconds else None

    @property
    def correctness_cost(self) -> Quartiles:
        """Time of a step of tfdist's `fit` over that of a bare loop under the same strategy."""
        return ratio(self.seconds["tfdist fit"], self.seconds["tfdist loop"])

    @property
    def speed_of_several_steps(self) -> Quartiles | None:
        """Return the time of a step of `fit` over that of one among several in a graph; None where none were."""
        several = self.seconds.get("tfdist fit, several steps")
        return None if several is None else ratio(self.seconds["tfdist fit"], several)

    def throughput(self, arm: str) -> Spread:
        """Return examples per second over all workers: those of a round by the time of its slowest worker."""
        return spread([self.setup.global_batch_size / seconds for seconds in self.seconds[arm]])

    def to_json(self) -> str:
        """Return the report as JSON, ratios included."""
        derived = {
            "speed": {peer: asdict(speed) for peer in PEERS if (speed := self.speed(peer)) is not None},
            "correctness_cost": asdict(self.correctness_cost),
            **({} if (several := self.speed_of_several_steps) is None else {"speed_of_several_steps": asdict(several)}),
            "examples_per_second": {arm: asdict(self.throughput(arm)) for arm in self.seconds},
        }
        return json.dumps({**asdict(self), **derived}, indent=2)


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda arm, number: None) -> StepReport:
    """Measure all arms in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each arm and round (0: warming up) before it is measured.
    Raises:
        MissingDependencyError: the strategy's engine is not installed.
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> run(Setup(strategy="mirrored", workers=1, replicas_per_worker=2, model="convolutional",
        ...           global_batch_size=64, warm_up_steps=3, steps=20, rounds=5)).correctness_cost    # doctest: +SKIP
    """
    lane_of = arms(
        setup.strategy,
        steps_per_execution=setup.steps_per_execution,
        horovod=strategy_table.get("ring").is_installed,
    )
    chosen = {} if setup.collectives is None else {strategy_table.COLLECTIVES_VARIABLE: setup.collectives}
    order = list(lane_of)
    seconds: dict[str, list[float]] = {arm: [] for arm in order}
    about = machine.describe()
    with contextlib.ExitStack() as stack:
        found = {
            name: stack.enter_context(
                lanes.Lane(
                    name,
                    workers=setup.workers,
                    replicas_per_worker=setup.replicas_per_worker,
                    environment=chosen if name == setup.strategy else {},
                )
            )
            for name in dict.fromkeys(lane_of.values())
        }

        def call(arm: str, function: str, **arguments: Any) -> list[Any]:
            with lanes.turn(found[lane_of[arm]], found.values()) as lane:
                return lane.call(f"tfdist.bench.step.arms:{function}", arm=arm, **arguments)

        what = {"strategy": setup.strategy, "model": setup.model, "global_batch_size": setup.global_batch_size}
        for arm in reversed(order):  # tfdist's first: what is missing is then known before the others have started
            on_round(arm, 0)
            at_once = setup.steps_per_execution if arm == "tfdist fit, several steps" else 1
            warm_up_steps = -(-setup.warm_up_steps // at_once) * at_once
            call(arm, "prepare", **what, steps_per_execution=at_once, steps=warm_up_steps)
        for number in range(setup.rounds):
            turn = number % len(order)
            for arm in order[turn:] + order[:turn]:
                on_round(arm, number + 1)
                seconds[arm].append(max(call(arm, "measure", steps=setup.steps)) / setup.steps)
    about["load average at the end"] = machine.describe()["load average"]
    return StepReport(setup=setup, seconds=seconds, machine=about)
