"""A large table of embeddings in parts on parameter servers: rows looked up, steps of training, and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfdist.bench.suite import Quartiles, Told, in_turns, quartiles, untold
from tfdist.bench.workers import lanes
from tfdist.validation import integer

__all__ = ["DRAWS", "MOMENTS", "WORK", "LookupArm", "ServerMemory", "TableLookups", "TableResult", "draw", "resident"]

#: the kinds of work on the table, and the ways to draw the ids of its rows
WORK = ("lookups", "sgd", "adagrad")
DRAWS = ("uniform", "power law")
#: the moments at which the servers' memory is read
MOMENTS = ("before", "with the table", "after training")

_CHIEF = "benchmarks.servers.table_lookups_chief"
_WARM_UP_STEPS = 4
# a prime that spreads the popular rows over the table, as hashing does
_SPREAD = 2_654_435_761


@dataclass(frozen=True, kw_only=True)
class TableLookups:
    """The settings of a measurement of one table."""

    rows: int  # of the table
    dim: int  # float32 numbers in a row
    rounds: int  # measurements of everything
    steps: int  # batches per measurement
    workers: int = 2  # how many
    servers: int = 2  # how many, each with one part
    batch_size: int = 8192  # ids in a batch

    def __post_init__(self) -> None:
        for name in ("dim", "rounds", "steps", "workers", "servers", "batch_size"):
            integer(name, getattr(self, name), minimum=1)
        integer("rows", self.rows, minimum=self.servers, maximum=2**31 - 1)

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.dim

    def run(self, told: Told = untold) -> "TableResult":
        """Make a table, do all kinds of work with it in turns, and return the measurements."""
        kinds = {f"{work}, {draw} ids": (work, draw) for work in WORK for draw in DRAWS}
        memory, batch = {}, {"batch_size": self.batch_size}
        with lanes.Lane("chief", workers=1) as lane:

            def look(moment: str) -> None:
                memory[moment] = [ServerMemory(**server) for server in lane.call(f"{_CHIEF}:memory")[0]]

            def measure(arm: str, number: int) -> float:
                work, ids = kinds[arm]
                (took,) = lane.call(f"{_CHIEF}:measure", what=work, ids=ids, steps=self.steps, **batch)
                return float(took) / self.steps

            told("starting")
            lane.call(f"{_CHIEF}:start", workers=self.workers, servers=self.servers)
            look("before")
            told(f"making {self.rows:,} rows")
            (create_seconds,) = lane.call(f"{_CHIEF}:create", rows=self.rows, dim=self.dim)
            look("with the table")
            for work in WORK:
                told(f"{work}, warming up")
                lane.call(f"{_CHIEF}:prepare", what=work, steps=_WARM_UP_STEPS, **batch)
            seconds = in_turns(list(kinds), measure, count=self.rounds, told=told)
            look("after training")
            lane.call(f"{_CHIEF}:end")
        arms = [
            LookupArm(work=kinds[arm][0], draw=kinds[arm][1], seconds=took, **batch) for arm, took in seconds.items()
        ]
        return TableResult(setup=self, create_seconds=create_seconds, memory=memory, arms=arms)


@dataclass(frozen=True, kw_only=True)
class ServerMemory:
    """The memory of a parameter server at one moment."""

    placed: int  # bytes of the models' variables on it, without the slots of optimizers
    resident: int  # bytes that its process has in memory, including TensorFlow itself
    most: int  # the most that it had until then


@dataclass(frozen=True, kw_only=True)
class LookupArm:
    """One kind of work, with one way to draw ids."""

    work: str  # a name from `WORK`
    draw: str  # a name from `DRAWS`
    batch_size: int  # ids in a batch
    seconds: Sequence[float]  # seconds per batch, one per round

    @property
    def rows_per_second(self) -> Quartiles:
        """Ids per second over all workers, with repeated ids."""
        return quartiles([self.batch_size / seconds for seconds in self.seconds])

    @property
    def steps_per_second(self) -> Quartiles:
        """Batches per second over all workers."""
        return quartiles([1 / seconds for seconds in self.seconds])


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """The measurements of one table."""

    setup: TableLookups  # the settings of the measurement
    create_seconds: float  # from the request for the table until its first and its last row could be read
    memory: Mapping[str, Sequence[ServerMemory]]  # a moment from `MOMENTS` -> each server
    arms: Sequence[LookupArm]  # every work on every draw of ids


def draw(how: str, count: int, rows: int, *, seed: int = 11) -> NDArray[np.int32]:
    """Return ids of rows, uniform or by a power law.

    By the law, the row of rank r is drawn in proportion to 1 / r, and popular rows are spread over the table.

    Example:
        >>> draw("power law", 8192, 1000).shape
        (8192,)
    """
    uniform = np.random.default_rng(seed).random(count)
    if how == "uniform":
        return (uniform * rows).astype(np.int32)
    ranks = np.minimum(((rows + 1.0) ** uniform).astype(np.int64) - 1, rows - 1)
    return (ranks * _SPREAD % rows).astype(np.int32)


def resident(status: str) -> tuple[int, int]:
    """Return the bytes that a process has in memory, and the most that it has had.

    Example:
        >>> resident("Name: python\\nVmHWM:    20 kB\\nVmRSS:    10 kB")
        (10240, 20480)
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most
