"""Sharded data parallelism beside plain data parallelism, in turns: seconds of a step, memory of a process, bytes sent.

Memory is measured in processes of their own (`memory`), bytes between workers in network namespaces.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from tfdist.bench.sharded import formulas, memory
from tfdist.bench.workers import lanes, links
from tfdist.cluster.strategy_table import STAGE_VARIABLE
from tfdist.errors import ConfigError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, ratio
from tfdist.validation import integer

__all__ = ["ARMS", "Report", "Setup", "run"]

#: arm -> strategy and stage
ARMS: Mapping[str, tuple[str, int | None]] = {
    "plain": ("multi-worker", None),
    "stage 1": ("sharded-data-parallel", 1),
    "stage 2": ("sharded-data-parallel", 2),
    "stage 3": ("sharded-data-parallel", 3),
}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        workers: number of processes.
        units: of each layer.
        layers: number of them.
        batch_size: global.
        steps: per measurement.
        rounds: measurements of each arm.
        link: between workers for the bytes that are sent, see `links.Link`; None: these are not measured.
    """

    workers: int = 2
    units: int = 1000
    layers: int = 48
    batch_size: int = 256
    steps: int = 5
    rounds: int = 5
    link: links.Link | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "units", "layers", "batch_size", "steps", "rounds"):
            integer(name, getattr(self, name), minimum=1)
        if self.workers < 2:
            raise ConfigError(f"workers is {self.workers}; nothing is shared by one. Choose 2 or more.")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it.

    Attributes:
        setup: what was measured.
        seconds: arm -> seconds per step, one per round; the slowest worker's.
        peak_bytes: arm -> the largest memory of each process, see `memory.above`.
        slots_bytes: arm -> what each process holds of the optimizer's variables.
        sent_bytes: arm -> what each process sends in a step, headers left out; empty where that was not measured.
        parameters: of the network.
        machine: processor, cores, versions, time and load.
    """

    setup: Setup
    seconds: Mapping[str, Sequence[float]]
    peak_bytes: Mapping[str, Sequence[int]]
    slots_bytes: Mapping[str, Sequence[int]]
    sent_bytes: Mapping[str, Sequence[float]]
    parameters: int
    machine: Mapping[str, str]

    def time(self, arm: str) -> Quartiles:
        """Return the time of a step over that of plain data parallelism."""
        return ratio(self.seconds[arm], self.seconds["plain"])

    def expected_bytes(self, arm: str) -> float:
        """Return the memory that the formula has."""
        workers, layers = self.setup.workers, self.setup.layers
        return formulas.memory_bytes(self.parameters, workers, ARMS[arm][1], layers=layers)

    def under_way_bytes(self, arm: str) -> float:
        """Return what is whole for a moment beside it."""
        return formulas.under_way_bytes(self.parameters, ARMS[arm][1], layers=self.setup.layers)

    def expected_sent_bytes(self, arm: str) -> float:
        """Return what each process sends in a step by the formula."""
        workers, layers = self.setup.workers, self.setup.layers
        return formulas.sent_bytes(self.parameters, workers, ARMS[arm][1], layers=layers)

    def to_json(self) -> str:
        """Return the report as JSON, with ratios and formulas."""
        derived = {
            "time_over_plain": {arm: asdict(self.time(arm)) for arm in self.seconds},
            "expected_bytes": {arm: self.expected_bytes(arm) for arm in self.seconds},
            "under_way_bytes": {arm: self.under_way_bytes(arm) for arm in self.seconds},
            "expected_sent_bytes": {arm: self.expected_sent_bytes(arm) for arm in self.seconds},
        }
        return json.dumps({**asdict(self), **derived}, indent=2)


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda arm, number: None) -> Report:
    """Measure all arms in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each arm and round before it is measured; 0: warming up, memory and bytes.
    Raises:
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> run(Setup(workers=2, rounds=3)).time("stage 1")              # doctest: +SKIP
    """
    about, order = machine.describe(), list(ARMS)
    seconds: dict[str, list[float]] = {arm: [] for arm in order}
    with _lanes(setup, {}) as call:
        for arm in order:
            on_round(arm, 0)
            call(arm, "prepare", **_what(setup, arm))
        for number in range(setup.rounds):
            for arm in order[number % len(order) :] + order[: number % len(order)]:
                on_round(arm, number + 1)
                found = call(arm, "measure", steps=setup.steps)
                seconds[arm].append(max(one["seconds"] for one in found) / setup.steps)
    wide, narrow = {}, {}
    few, thin = memory.batch(setup.workers), memory.narrow(setup.units)
    for arm in order:
        wide[arm] = _alone(setup, arm, on_round, environment=memory.GIVING_BACK, other=few)
        narrow[arm] = _alone(setup, arm, on_round, environment=memory.GIVING_BACK, other={**few, **thin})
    bytes_of = {}
    if setup.link is not None:
        with links.network(setup.link, setup.workers) as network:
            bytes_of = {arm: _alone(setup, arm, on_round, network=network) for arm in order}
    about["load average at the end"] = machine.describe()["load average"]
    return Report(
        setup=setup,
        seconds=seconds,
        peak_bytes={arm: memory.above(wide[arm], narrow[arm]) for arm in order},
        slots_bytes={arm: [one["slots_bytes"] for one in found] for arm, found in wide.items()},
        sent_bytes={arm: [one["sent_bytes"] / setup.steps for one in found] for arm, found in bytes_of.items()},
        parameters=wide["plain"][0]["parameters"],
        machine=about,
    )


def _alone(
    setup: Setup,
    arm: str,
    on_round: Callable[[str, int], None],
    environment: Mapping[str, str] = _NOTHING,
    network: links.Network | None = None,
    other: Mapping[str, float] = _NOTHING,
) -> list[Any]:
    on_round(arm, 0)
    with _lanes(setup, environment, [arm], network) as call:
        call(arm, "prepare", **{**_what(setup, arm), **other})
        return call(arm, "measure", steps=setup.steps)


def _what(setup: Setup, arm: str) -> dict[str, Any]:
    own = {name: getattr(setup, name) for name in ("units", "layers", "batch_size")}
    return {"strategy": ARMS[arm][0], "steps": 2, **own}


@contextlib.contextmanager
def _lanes(setup: Setup, environment: Mapping[str, str], arms: Sequence[str] = tuple(ARMS), network: Any = None) -> Any:
    with contextlib.ExitStack() as stack:
        found = {}
        for arm in arms:
            strategy, stage = ARMS[arm]
            own = {} if stage is None else {STAGE_VARIABLE: str(stage)}
            lane = lanes.Lane(strategy, workers=setup.workers, environment={**environment, **own}, network=network)
            found[arm] = stack.enter_context(lane)

        def call(arm: str, function: str, **arguments: Any) -> list[Any]:
            with lanes.turn(found[arm], found.values()) as lane:
                return lane.call(f"tfdist.bench.sharded.arms:{function}", **arguments)

        yield call
