"""Steps per second: tfdist with `fit` beside its peers in hand-written loops, in turns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tfdist.bench.suite import (
    MODELS,
    Quartiles,
    Report,
    Spread,
    Suite,
    Table,
    Told,
    in_turns,
    option,
    ratio,
    spread,
    turn,
    untold,
)
from tfdist.bench.workers import lanes
from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError
from tfdist.planner import machine
from tfdist.validation import integer, one_of
from tfdist.variables import COLLECTIVES

PEERS = ("tensorflow loop", "horovod loop")
#: strategies beside which a hand-written loop can be measured
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
    """Return the lane of each arm: a peer's name, or the strategy's.

    Example:
        >>> arms("mirrored")
        {'tensorflow loop': 'tensorflow', 'tfdist loop': 'mirrored', 'tfdist fit': 'mirrored'}
    """
    left_out = set() if steps_per_execution > 1 else {"tfdist fit, several steps"}
    if strategy_table.get(strategy).processes != "workers" or not (horovod or strategy == "ring"):
        left_out.add("horovod loop")
    return {arm: strategy if lane == "tfdist" else lane for arm, lane in _LANES.items() if arm not in left_out}


_LOOPS = "tfdist.bench.workers.training_loops"


@dataclass(frozen=True, kw_only=True)
class StepBench(Suite):
    strategy: str  # a name from `STRATEGIES`
    replicas_per_worker: int = 1  # replicas in each process
    # the backend of "multi-worker", from `strategy_table.COLLECTIVES`; None: its default
    collectives: str | None = None
    workers: int = option(2, "Workers, except under mirrored.")
    model: str = option("perceptron", "Model to train.", choices=MODELS)
    global_batch_size: int = option(32, "Global batch size.", flags=["--batch-size"])
    warm_up_steps: int = option(3, "Warm-up steps.")
    steps: int = option(10, "Steps per measurement.")
    steps_per_execution: int = option(1, "Also measure `fit` with this.")
    rounds: int = option(7, "Measurements of each side.")

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("replicas_per_worker", self.replicas_per_worker, minimum=1)
        one_of("strategy", self.strategy, STRATEGIES, hint="The others have no hand-written loop as a peer.")
        if self.collectives is not None:
            one_of("collectives", self.collectives, strategy_table.COLLECTIVES)
            if self.strategy != "multi-worker":
                raise ConfigError(
                    f"collectives is {self.collectives!r}, and the strategy is {self.strategy!r}; only 'multi-worker' "
                    "has a choice of them. Leave collectives out."
                )
        if self.steps % self.steps_per_execution:
            raise ConfigError(
                f"steps is {self.steps} and steps_per_execution is {self.steps_per_execution}; the first must be a "
                "multiple of the second."
            )
        replicas = self.workers * self.replicas_per_worker
        if self.global_batch_size % replicas:
            raise ConfigError(
                f"the global batch has {self.global_batch_size} examples for {replicas} replicas of {self.strategy!r}; "
                f"the peers' loops take as many on each. Choose a multiple of {replicas}."
            )

    def run(self, told: Told = untold) -> "StepReport":
        horovod = strategy_table.get("ring").is_installed
        lane_of = arms(self.strategy, steps_per_execution=self.steps_per_execution, horovod=horovod)
        chosen = {} if self.collectives is None else {COLLECTIVES.name: self.collectives}
        found = {
            name: lanes.Lane(
                name,
                workers=self.workers,
                replicas_per_worker=self.replicas_per_worker,
                environment=chosen if name == self.strategy else {},
            )
            for name in dict.fromkeys(lane_of.values())
        }
        what = {"strategy": self.strategy, "model": self.model, "global_batch_size": self.global_batch_size}
        with machine.observed() as about, lanes.running({arm: found[lane] for arm, lane in lane_of.items()}) as call:

            def measure(arm: str, number: int) -> float:
                return max(call(arm, f"{_LOOPS}:measure", arm=arm, steps=self.steps)) / self.steps

            for arm in reversed(lane_of):  # tfdist's first: what is missing is known before the others have started
                told(f"{self.strategy}: {arm}, {turn(0, self.rounds)}")
                at_once = self.steps_per_execution if arm == "tfdist fit, several steps" else 1
                warm_up_steps = -(-self.warm_up_steps // at_once) * at_once
                call(arm, f"{_LOOPS}:prepare", arm=arm, steps_per_execution=at_once, steps=warm_up_steps, **what)
            seconds = in_turns(list(lane_of), measure, count=self.rounds, told=told, subject=f"{self.strategy}: ")
        return StepReport(setup=self, seconds=seconds, machine=about)


@dataclass(frozen=True, kw_only=True)
class StepReport(Report):
    """The seconds per step of each arm, one per round, for the slowest worker."""

    setup: StepBench
    seconds: Mapping[str, Sequence[float]]

    def speed(self, peer: str) -> Quartiles | None:
        return ratio(self.seconds[peer], self.seconds["tfdist fit"]) if peer in self.seconds else None

    @property
    def correctness_cost(self) -> Quartiles:
        """The step time of `fit` over the step time of a bare loop under the same strategy."""
        return ratio(self.seconds["tfdist fit"], self.seconds["tfdist loop"])

    @property
    def speed_of_several_steps(self) -> Quartiles | None:
        """The step time of `fit` over that of several steps in one graph; None if these were not measured."""
        several = self.seconds.get("tfdist fit, several steps")
        return None if several is None else ratio(self.seconds["tfdist fit"], several)

    def throughput(self, arm: str) -> Spread:
        """Return the examples per second over all workers, by the time of the slowest worker."""
        return spread([self.setup.global_batch_size / seconds for seconds in self.seconds[arm]])

    def derived(self) -> dict[str, Any]:
        several = self.speed_of_several_steps
        return {
            "speed": {peer: speed for peer in PEERS if (speed := self.speed(peer)) is not None},
            "correctness_cost": self.correctness_cost,
            **({} if several is None else {"speed_of_several_steps": several}),
            "examples_per_second": {arm: self.throughput(arm) for arm in self.seconds},
        }

    def shown(self) -> Iterator[Table | str]:
        return shown([self])


def shown(reports: Sequence[StepReport]) -> Iterator[Table | str]:
    setup = reports[0].setup
    every = arms("ring", steps_per_execution=setup.steps_per_execution)
    found = [arm for arm in every if any(arm in report.seconds for report in reports)]
    rows = []
    for arm in found:
        times = [report.seconds.get(arm) for report in reports]
        rows.append([f"{arm}, ms per step", *("-" if one is None else f"{1000 * median(one):.1f}" for one in times)])
    for arm in found:
        rates = [str(report.throughput(arm)) if arm in report.seconds else "-" for report in reports]
        rows.append([f"{arm}, examples per second", *rates])
    for peer in PEERS:
        speeds = [report.speed(peer) for report in reports]
        if any(speeds):
            rows.append([f"speed of fit, against the {peer}", *(str(speed or "-") for speed in speeds)])
    several = [report.speed_of_several_steps for report in reports]
    if any(several):
        rows.append([f"speed of {setup.steps_per_execution} steps at once, against single ones", *map(str, several)])
    rows.append(["cost of correctness, fit / tfdist loop", *(str(report.correctness_cost) for report in reports)])
    titles = []
    for one in (report.setup for report in reports):
        name = one.strategy if one.collectives is None else f"{one.strategy} {one.collectives}"
        titles.append(f"{name}, {one.workers} x {one.replicas_per_worker}")
    yield Table(["", *titles], rows)
    yield (
        f"{setup.model}, global batch {setup.global_batch_size}; {setup.warm_up_steps} steps to warm up, "
        f"{setup.rounds} rounds of {setup.steps} steps; processes x replicas; ratios as median [lower-upper quartile], "
        f"examples per second as mean +- 1.96 standard deviations; {reports[0].ran_on()}"
    )
