"""All-reduce, engine beside engine, by the conventions of nccl-tests."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.bench.all_reduce import bare, message
from tfdist.bench.all_reduce.open_mpi import RANKS_VARIABLE
from tfdist.bench.workers import lanes
from tfdist.bench.workers.links import Link, Network, network
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles, ratio
from tfdist.measurement.sizes import shown
from tfdist.native.engine import ALGORITHM_VARIABLE
from tfdist.validation import integer

__all__ = ["ENGINES", "LIMITS", "PEERS", "Report", "Row", "Setup", "engines", "run"]

# Each has worker processes of its own: two multi-worker strategies cannot share a process, and the ring starts Horovod
# with settings that are good for it and not for others.
ENGINES = ("tensorflow", "multi-worker", "horovod", "ring", "native", "open-mpi", "tcp", "bare", "memcpy")
LIMITS = ("tcp", "bare", "memcpy")
_OPEN_MPI, _BARE = "open-mpi", "bare"
_ONE_HOST = (_OPEN_MPI, _BARE)  # not between hosts, and so not behind links
PEERS = ("tensorflow", "horovod", _OPEN_MPI)
_MOST_WARM_UP_CALLS = 5
_WORKER = "tfdist.bench.all_reduce.engines"
_MODULES = {
    **dict.fromkeys(LIMITS, "tfdist.bench.all_reduce.limits"),
    _OPEN_MPI: "tfdist.bench.all_reduce.open_mpi",
    _BARE: "tfdist.bench.all_reduce.bare",
}


def engines(*, linked: bool) -> tuple[str, ...]:
    """Return all that can be measured between workers of one host, or between workers behind links.

    Example:
        >>> sorted(set(engines(linked=False)) - set(engines(linked=True)))
        ['bare', 'open-mpi']
    """
    return tuple(engine for engine in ENGINES if not (linked and engine in _ONE_HOST))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        engines: names from `ENGINES`.
        workers: number of processes, at least 2.
        sizes: bytes of one float32 tensor, each a row.
        gradients: a model from `tfdist.bench.workers.models.MODELS`, whose gradients are one more row; None for none.
        rounds: measurements of each engine in each row.
        link: what connects the workers; None: they share this host.
        algorithms: from `tfdist.native.engine.ALGORITHMS`: each is one more engine, the native one by this algorithm.
            Only over a link: workers of one host need none.
    """

    engines: Sequence[str]
    workers: int
    sizes: Sequence[int]
    gradients: str | None
    rounds: int
    link: Link | None = None
    algorithms: Sequence[str] = ()

    def __post_init__(self) -> None:
        integer("workers", self.workers, minimum=2)
        integer("rounds", self.rounds, minimum=1)
        unknown = [engine for engine in self.engines if engine not in ENGINES]
        if unknown or not self.engines:
            raise ConfigError(f"engines is {list(self.engines)}; name some of {', '.join(ENGINES)}.")
        here = [engine for engine in self.engines if engine in _ONE_HOST]
        if here and self.link is not None:
            raise ConfigError(
                f"engines is {list(self.engines)}, and the workers are behind links; processes of {' and '.join(here)} "
                f"are all on this host. Leave {' and '.join(here)} out, or the link."
            )
        if self.algorithms and self.link is None:
            raise ConfigError(
                f"algorithms is {list(self.algorithms)}, of hosts that are connected by a link, and there is none. "
                "Name one, such as 1gbit, or no algorithm."
            )

    def lanes(self) -> list[str]:
        """Return the names of all engines, with the algorithm behind a colon where one is named."""
        return [*self.engines, *(f"native:{algorithm}" for algorithm in self.algorithms)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One message, reduced by every engine.

    Attributes:
        name: the size, or whose gradients.
        elements: of each float32 tensor in it.
        calls: all-reduces in one measurement.
        seconds: engine -> seconds per all-reduce, one per round; see `message.seconds`.
        wrong: engine -> wrong elements of a result, over all workers.
    """

    name: str
    elements: Sequence[int]
    calls: int
    seconds: Mapping[str, Sequence[float]]
    wrong: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes that each worker contributes."""
        return 4 * sum(self.elements)

    def time(self, engine: str) -> Quartiles:
        """Return the seconds of an all-reduce."""
        return quartiles(self.seconds[engine])

    def algorithm_bandwidth(self, engine: str) -> Quartiles:
        """Return S / t, in bytes per second."""
        return quartiles([self.bytes / seconds for seconds in self.seconds[engine]])

    def bus_bandwidth(self, engine: str, workers: int) -> Quartiles:
        """Return the bytes per second of each link in a perfect all-reduce; see `message.bus_bandwidth`."""
        return quartiles([message.bus_bandwidth(self.bytes, seconds, workers) for seconds in self.seconds[engine]])

    def speed(self, engine: str, peer: str) -> Quartiles | None:
        """Return how many times as fast as the peer an engine was in the same round; None without the peer."""
        if peer not in self.seconds or engine == peer:
            return None
        return ratio(self.seconds[peer], self.seconds[engine])


@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows, and the machine.

    Attributes:
        setup: what was measured.
        rows: one per message.
        left_out: engine -> why it could not run.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: Setup
    rows: Sequence[Row]
    left_out: Mapping[str, str]
    machine: Mapping[str, str]

    def to_json(self) -> str:
        """Return the report as JSON, bandwidths and ratios included."""
        derived = [
            {
                "name": row.name,
                "engine": engine,
                "bytes": row.bytes,
                "seconds": asdict(row.time(engine)),
                "algorithm_bandwidth": asdict(row.algorithm_bandwidth(engine)),
                "bus_bandwidth": asdict(row.bus_bandwidth(engine, self.setup.workers)),
                "wrong": row.wrong[engine],
                "speed": {peer: asdict(q) for peer in PEERS if (q := row.speed(engine, peer)) is not None},
            }
            for row in self.rows
            for engine in row.seconds
        ]
        return json.dumps({**asdict(self), "results": derived}, indent=2)


def run(
    setup: Setup,
    *,
    leave_out: bool = True,
    on_turn: Callable[[str, str, int], None] = lambda row, engine, number: None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Report:
    """Measure all engines in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        leave_out: whether to go on without an engine that is not installed.
        on_turn: told of each row, engine and round (0: warming up) before it is measured.
        on_row: told of each row that is done.
    Raises:
        MissingDependencyError: an engine is not installed, and is not to be left out.
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> run(Setup(engines=["ring"], workers=2, sizes=[4096], gradients=None, rounds=3)).rows    # doctest: +SKIP
    """
    about = machine.describe()
    with contextlib.ExitStack() as stack:
        joined = stack.enter_context(network(setup.link, setup.workers)) if setup.link else None
        lane_of = {engine: stack.enter_context(_lane(engine, setup.workers, joined, stack)) for engine in setup.lanes()}
        left_out = _start(lane_of, leave_out)
        rows = []
        for name, elements in _messages(setup, lane_of) if lane_of else ():
            rows.append(_row(setup, lane_of, name, elements, on_turn))
            on_row(rows[-1])
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, rows=rows, left_out=left_out, machine=about)


def _lane(engine: str, workers: int, joined: Network | None, stack: contextlib.ExitStack) -> lanes.Lane:
    if engine == _OPEN_MPI:  # one worker asks as many ranks
        return lanes.Lane(engine, workers=1, environment={RANKS_VARIABLE: str(workers)})
    name, _, algorithm = engine.partition(":")
    environment = {ALGORITHM_VARIABLE: algorithm} if algorithm else {}
    if engine == _BARE:
        environment = {bare.MEMORY_VARIABLE: stack.enter_context(bare.memory())}
    return lanes.Lane(name, workers=workers, environment=environment, network=joined)


def _module(engine: str) -> str:
    return _MODULES.get(engine, _WORKER)


def _start(lane_of: dict[str, lanes.Lane], leave_out: bool) -> dict[str, str]:
    """Start every engine; take out those that cannot run, and return why."""
    left_out = {}
    for engine, lane in list(lane_of.items()):
        try:
            lane.call(f"{_module(engine)}:start", engine=engine)
        except MissingDependencyError as error:
            if not leave_out:
                raise
            left_out[engine] = str(error)
            del lane_of[engine]
    return left_out


def _messages(setup: Setup, lane_of: Mapping[str, lanes.Lane]) -> Iterator[tuple[str, list[int]]]:
    for size in setup.sizes:
        yield shown(size), [size // 4]
    if setup.gradients is not None:
        lane = next(iter(lane_of.values()))
        yield setup.gradients, lane.call(f"{_WORKER}:gradients", model=setup.gradients)[0]


def _row(
    setup: Setup,
    lane_of: Mapping[str, lanes.Lane],
    name: str,
    elements: Sequence[int],
    on_turn: Callable[[str, str, int], None],
) -> Row:
    engines, calls = list(lane_of), message.calls(4 * sum(elements))
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    wrong = {}

    def call(engine: str, function: str, **arguments: Any) -> list[Any]:
        with lanes.turn(lane_of[engine], lane_of.values()) as lane:
            return lane.call(f"{_module(engine)}:{function}", engine=engine, **arguments)

    for engine in engines:
        on_turn(name, engine, 0)
        wrong[engine] = sum(call(engine, "prepare", elements=elements, warm_up=min(calls + 1, _MOST_WARM_UP_CALLS)))
    for number in range(setup.rounds):
        turn = number % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            on_turn(name, engine, number + 1)
            seconds[engine].append(message.seconds(call(engine, "measure", calls=calls)))
    return Row(name=name, elements=elements, calls=calls, seconds=seconds, wrong=wrong)
