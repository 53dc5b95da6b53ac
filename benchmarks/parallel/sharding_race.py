"""Sharded and plain data parallelism, in turns: seconds of a step, memory of a process, bytes sent.

Memory is measured in processes of their own (`sharding_formulas`), bytes between workers in network namespaces.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.parallel import sharding_formulas
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, ratio, turn, untold
from tfdist.bench.workers import lanes, slow_network
from tfdist.cli.bench.suite_command import link_of, suite_command
from tfdist.planner import machine
from tfdist.variables import SHARDING_STAGE

__all__ = ["ARMS", "ShardingBench", "ShardingReport", "command"]

#: arm -> strategy and stage
ARMS: Mapping[str, tuple[str, int | None]] = {
    "plain": ("multi-worker", None),
    "stage 1": ("sharded-data-parallel", 1),
    "stage 2": ("sharded-data-parallel", 2),
    "stage 3": ("sharded-data-parallel", 3),
}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_TRAINING = "benchmarks.parallel.sharding_training"


@dataclass(frozen=True, kw_only=True)
class ShardingBench(Suite):
    """Measure memory, bytes and step time of sharded data parallelism, compared with plain data parallelism.

    A wide perceptron with Adam and a global norm is trained under multi-worker and under each stage of
    sharded-data-parallel. Memory is the peak of a process, minus that of a process with a narrow network. The formula
    for N weights and p workers is 16 N bytes for plain, 4 N (1 + 3 / p) for stages 1 and 2, and 16 N / p plus two
    layers for stage 3. The row below it adds the two layers that are whole while they travel. Bytes are compared with
    those of an all_reduce, 8 N (p - 1) / p; stage 3 sends 1.5 times as many, minus those of two layers. A time is a
    ratio to plain data parallelism: below 1 sharding is faster.
    """

    workers: int = option(2, "Processes.", minimum=2)
    units: int = option(1000, "Of each layer.")
    layers: int = option(48, "Number of layers.")
    batch_size: int = option(256, "Of all workers.")
    steps: int = option(5, "Steps per measurement.")
    rounds: int = option(5, "Measurements each.")
    link: str | None = option(
        None, "Between workers in network namespaces, for the bytes.", choices=tuple(slow_network.RATES)
    )

    def run(self, told: Told = untold) -> "ShardingReport":
        few, thin = sharding_formulas.batch(self.workers), sharding_formulas.narrow(self.units)
        with machine.observed() as about:
            with lanes.running({arm: self._lane(arm) for arm in ARMS}) as call:

                def measure(arm: str, number: int) -> float:
                    found = call(arm, f"{_TRAINING}:measure", steps=self.steps)
                    return max(one["seconds"] for one in found) / self.steps

                for arm in ARMS:
                    told(f"{arm}, {turn(0, self.rounds)}")
                    call(arm, f"{_TRAINING}:prepare", **self._what(arm))
                seconds = in_turns(list(ARMS), measure, count=self.rounds, told=told)
            wide, narrow, bytes_of = {}, {}, {}
            for arm in ARMS:
                told(f"{arm}, memory")
                wide[arm] = self._alone(arm, environment=sharding_formulas.GIVING_BACK, other=few)
                narrow[arm] = self._alone(arm, environment=sharding_formulas.GIVING_BACK, other={**few, **thin})
            if (link := link_of(self.link, None)) is not None:
                with slow_network.network(link, self.workers) as network:
                    for arm in ARMS:
                        told(f"{arm}, bytes")
                        bytes_of[arm] = self._alone(arm, network=network)
        return ShardingReport(
            setup=self,
            seconds=seconds,
            peak_bytes={arm: sharding_formulas.above(wide[arm], narrow[arm]) for arm in ARMS},
            slots_bytes={arm: [one["slots_bytes"] for one in found] for arm, found in wide.items()},
            sent_bytes={arm: [one["sent_bytes"] / self.steps for one in found] for arm, found in bytes_of.items()},
            parameters=wide["plain"][0]["parameters"],
            machine=about,
        )

    def _alone(
        self,
        arm: str,
        *,
        environment: Mapping[str, str] = _NOTHING,
        network: slow_network.Network | None = None,
        other: Mapping[str, float] = _NOTHING,
    ) -> list[Any]:
        with lanes.running({arm: self._lane(arm, environment, network)}) as call:
            call(arm, f"{_TRAINING}:prepare", **{**self._what(arm), **other})
            return call(arm, f"{_TRAINING}:measure", steps=self.steps)

    def _what(self, arm: str) -> dict[str, Any]:
        own = {"units": self.units, "layers": self.layers, "batch_size": self.batch_size}
        return {"strategy": ARMS[arm][0], "steps": 2, **own}

    def _lane(
        self, arm: str, environment: Mapping[str, str] = _NOTHING, network: slow_network.Network | None = None
    ) -> lanes.Lane:
        strategy, stage = ARMS[arm]
        own = {} if stage is None else {SHARDING_STAGE.name: str(stage)}
        return lanes.Lane(strategy, workers=self.workers, environment={**environment, **own}, network=network)


@dataclass(frozen=True, kw_only=True)
class ShardingReport(Report):
    """The seconds, the memory and the sent bytes of each arm."""

    setup: ShardingBench
    seconds: Mapping[str, Sequence[float]]  # arm -> seconds per step, one per round; the slowest worker's
    peak_bytes: Mapping[str, Sequence[int]]  # arm -> the largest memory of each process, see `sharding_formulas.above`
    slots_bytes: Mapping[str, Sequence[int]]  # arm -> bytes of the optimizer's variables in each process
    # arm -> bytes that each process sends in a step, without headers; empty if they were not measured
    sent_bytes: Mapping[str, Sequence[float]]
    parameters: int  # of the network

    def time(self, arm: str) -> Quartiles:
        """Return the time of a step over that of plain data parallelism."""
        return ratio(self.seconds[arm], self.seconds["plain"])

    def expected_bytes(self, arm: str) -> float:
        """Return the memory by the formula."""
        workers, layers = self.setup.workers, self.setup.layers
        return sharding_formulas.memory_bytes(self.parameters, workers, ARMS[arm][1], layers=layers)

    def under_way_bytes(self, arm: str) -> float:
        """Return the bytes of tensors that are whole for a moment, in addition to this memory."""
        return sharding_formulas.under_way_bytes(self.parameters, ARMS[arm][1], layers=self.setup.layers)

    def expected_sent_bytes(self, arm: str) -> float:
        """Return the bytes that each process sends in a step, by the formula."""
        workers, layers = self.setup.workers, self.setup.layers
        return sharding_formulas.sent_bytes(self.parameters, workers, ARMS[arm][1], layers=layers)

    def derived(self) -> dict[str, Any]:
        return {
            "time_over_plain": {arm: self.time(arm) for arm in self.seconds},
            "expected_bytes": {arm: self.expected_bytes(arm) for arm in self.seconds},
            "under_way_bytes": {arm: self.under_way_bytes(arm) for arm in self.seconds},
            "expected_sent_bytes": {arm: self.expected_sent_bytes(arm) for arm in self.seconds},
        }

    def shown(self) -> Iterator[Table | str]:
        setup, arms, mega = self.setup, list(ARMS), 1e6
        memory = {arm: max(self.peak_bytes[arm]) for arm in arms}
        whole = {arm: self.expected_bytes(arm) + self.under_way_bytes(arm) for arm in arms}
        rows = [
            ["ms per step", *(f"{1000 * median(self.seconds[arm]):.1f}" for arm in arms)],
            ["time of a step, over plain", *(str(self.time(arm)) for arm in arms)],
            ["slots, MB", *(f"{max(self.slots_bytes[arm]) / mega:.1f}" for arm in arms)],
            ["memory, MB", *(f"{memory[arm] / mega:.1f}" for arm in arms)],
            ["  over the formula", *(f"{memory[arm] / self.expected_bytes(arm):.3f}" for arm in arms)],
            ["  and what is under way", *(f"{memory[arm] / whole[arm]:.3f}" for arm in arms)],
        ]
        if self.sent_bytes:
            sent = {arm: max(self.sent_bytes[arm]) for arm in arms}
            rows.append(["sent in a step, MB", *(f"{sent[arm] / mega:.1f}" for arm in arms)])
            rows.append(["  over the formula", *(f"{sent[arm] / self.expected_sent_bytes(arm):.3f}" for arm in arms)])
        yield Table(["", *ARMS], rows)
        yield (
            f"{self.parameters / mega:.1f} M weights, {setup.workers} workers, global batch {setup.batch_size}; "
            f"{setup.rounds} rounds of {setup.steps} steps; median [lower-upper quartile]; {self.ran_on()}"
        )


command = suite_command(
    "sharded",
    ShardingBench,
    examples={
        "python -m benchmarks sharded": "two workers, 48 M weights: minutes",
        "python -m benchmarks sharded --workers 4": "four",
        "python -m benchmarks sharded --link 10gbit": "bytes on the wire, too; as root",
    },
    page="sharded-data-parallel",
)
