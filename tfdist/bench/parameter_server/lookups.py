"""A large table of embeddings in parts on parameter servers: rows looked up, steps of training, and memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.bench.workers import lanes
from tfdist.measurement.ratio import Quartiles, quartiles
from tfdist.validation import integer

__all__ = ["DRAWS", "MOMENTS", "WORK", "Arm", "Result", "Server", "Setup", "measure"]

#: what is done with the table, and how the ids of its rows are drawn
WORK = ("lookups", "sgd", "adagrad")
DRAWS = ("uniform", "power law")
#: when the servers' memory is looked at
MOMENTS = ("before", "with the table", "after training")

_ARMS = "tfdist.bench.parameter_server.lookup_arms"
_WARM_UP_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        rows: of the table.
        dim: float32 numbers in a row.
        workers: how many.
        servers: how many, each with one part.
        batch_size: ids in a batch.
        steps: batches per measurement.
        rounds: measurements of everything.
    """

    rows: int
    dim: int
    rounds: int
    steps: int
    workers: int = 2
    servers: int = 2
    batch_size: int = 8192

    def __post_init__(self) -> None:
        for name in ("dim", "rounds", "steps", "workers", "servers", "batch_size"):
            integer(name, getattr(self, name), minimum=1)
        integer("rows", self.rows, minimum=self.servers, maximum=2**31 - 1)

    @property
    def bytes(self) -> int:
        """Bytes of the table."""
        return 4 * self.rows * self.dim


@dataclass(frozen=True, kw_only=True)
class Server:
    """The memory of a parameter server at one moment.

    Attributes:
        placed: bytes of the models' variables on it; what optimizers keep for each is not among them.
        resident: bytes that its process has in memory, TensorFlow itself included.
        most: the most it ever had until then.
    """

    placed: int
    resident: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One kind of work on ids that were drawn in one way.

    Attributes:
        work: a name from `WORK`.
        draw: a name from `DRAWS`.
        batch_size: ids in a batch.
        seconds: seconds per batch, one per round.
    """

    work: str
    draw: str
    batch_size: int
    seconds: Sequence[float]

    @property
    def rows_per_second(self) -> Quartiles:
        """Ids per second over all workers, each counted as often as it comes."""
        return quartiles([self.batch_size / seconds for seconds in self.seconds])

    @property
    def steps_per_second(self) -> Quartiles:
        """Batches per second over all workers."""
        return quartiles([1 / seconds for seconds in self.seconds])


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured on one table.

    Attributes:
        setup: what was measured.
        create_seconds: from asking for the table until its first and its last row could be read.
        memory: a moment from `MOMENTS` -> each server.
        arms: every work on every draw of ids.
    """

    setup: Setup
    create_seconds: float
    memory: Mapping[str, Sequence[Server]]
    arms: Sequence[Arm]


def measure(setup: Setup, *, on_turn: Callable[[str], None] = lambda what: None) -> Result:
    """Make a table, do everything with it in turns, each round in another order, and return what was measured.

    Args:
        setup: what to measure.
        on_turn: told what is measured next.
    Raises:
        TfdistError: the chief failed, or a worker was lost; the message has its traceback.

    Example:
        >>> measure(Setup(rows=1_000_000, dim=16, rounds=3, steps=5)).create_seconds     # doctest: +SKIP
        0.9
    """
    order = [(work, draw) for work in WORK for draw in DRAWS]
    seconds: dict[tuple[str, str], list[float]] = {arm: [] for arm in order}
    memory = {}
    with lanes.Lane("chief", workers=1) as lane:

        def look(moment: str) -> None:
            memory[moment] = [Server(**server) for server in lane.call(f"{_ARMS}:memory")[0]]

        on_turn("starting")
        lane.call(f"{_ARMS}:start", workers=setup.workers, servers=setup.servers)
        look("before")
        on_turn(f"making {setup.rows:,} rows")
        (create_seconds,) = lane.call(f"{_ARMS}:create", rows=setup.rows, dim=setup.dim)
        look("with the table")
        for work in WORK:
            on_turn(f"{work}, warming up")
            lane.call(f"{_ARMS}:prepare", what=work, batch_size=setup.batch_size, steps=_WARM_UP_STEPS)
        for turn in range(setup.rounds):
            first = turn % len(order)
            for work, draw in order[first:] + order[:first]:
                on_turn(f"{work}, {draw} ids, round {turn + 1} of {setup.rounds}")
                (took,) = lane.call(
                    f"{_ARMS}:measure", what=work, ids=draw, batch_size=setup.batch_size, steps=setup.steps
                )
                seconds[work, draw].append(took / setup.steps)
        look("after training")
        lane.call(f"{_ARMS}:end")
    arms = [
        Arm(work=work, draw=draw, batch_size=setup.batch_size, seconds=found) for (work, draw), found in seconds.items()
    ]
    return Result(setup=setup, create_seconds=create_seconds, memory=memory, arms=arms)
