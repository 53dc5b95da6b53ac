"""What a data benchmark compares with what, and what is asked of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist import validation
from tfdist.measurement.ratio import Quartiles, ratio

BATCH = {"rows": 1024, "images": 64}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        rows: rows of 40 numbers that are read, at least 4096.
        images: pictures that are read, at least 256.
        written_rows: rows that are written in a round.
        written_images: pictures that are written in a round.
        rounds: how often each side has its turn.
    """

    rows: int
    images: int
    written_rows: int
    written_images: int
    rounds: int

    def __post_init__(self) -> None:
        for name, least in (("rows", 4096), ("images", 256), ("written_rows", 4), ("written_images", 4), ("rounds", 1)):
            validation.integer(name, getattr(self, name), minimum=least)

    def examples(self, kind: str, subject: str) -> int:
        """Return how many examples a turn has."""
        if kind == "resume":
            return 1
        if subject == "write":
            return self.written_rows if kind == "rows" else self.written_images
        return self.rows if kind == "rows" else self.images


@dataclass(frozen=True)
class Target:
    """What is asked of a ratio.

    Attributes:
        of: "cpu" or "speed" (examples per second) or "time", against the peer.
        bound: the number.
        at_least: whether the ratio has to be at least that; else at most.
    """

    of: str
    bound: float
    at_least: bool

    def is_met(self, value: Quartiles) -> bool:
        """Return whether the median meets it."""
        return value.median >= self.bound if self.at_least else value.median <= self.bound

    def __str__(self) -> str:
        return f"{self.of} {'>=' if self.at_least else '<='} {self.bound:g}"


#: (subject, kind, way) -> what is asked
TARGETS: Mapping[tuple[str, str, str], Target] = {
    ("write", "rows", "tfdist"): Target("cpu", 0.06, at_least=False),
    ("write", "images", "tfdist"): Target("cpu", 0.6, at_least=False),
    ("read", "rows", "generic, numpy"): Target("speed", 1.0, at_least=True),
    ("read", "rows", "generic, native"): Target("speed", 2.0, at_least=True),
    ("read", "rows", "fixed, native"): Target("speed", 1.8, at_least=True),
    ("read", "images", "extent, numpy"): Target("speed", 1.0, at_least=True),
    ("read", "images", "extent, native"): Target("speed", 1.2, at_least=True),
    ("resume", "resume", "in the middle"): Target("time", 1.2, at_least=False),
}
PEERS = {"write": "tf.train.Example", "read": "tf.data", "resume": "fresh start"}
_PEER_OF = {"tf.data, skip": "tf.data, fresh start"}


@dataclass(frozen=True)
class Row:
    """One side, measured once per round.

    Attributes:
        subject: "write", "read" or "resume".
        kind: "rows" or "images"; "resume".
        way: who does it, and how.
        examples: per turn.
        seconds: wall clock, per round.
        cpu_seconds: of the whole process with all its threads, per round.
    """

    subject: str
    kind: str
    way: str
    examples: int
    seconds: Sequence[float]
    cpu_seconds: Sequence[float]

    @property
    def target(self) -> Target | None:
        """What is asked of it."""
        return TARGETS.get((self.subject, self.kind, self.way))

    @property
    def peer(self) -> str:
        """The way that it is compared with."""
        return _PEER_OF.get(self.way, PEERS[self.subject])

    def against(self, peer: "Row") -> dict[str, Quartiles]:
        """Return the ratios to a peer, round by round: speed (above 1 this one is faster), time, and CPU time.

        Example:
            >>> row, peer = (Row("read", "rows", way, 10, [s], [2.0]) for way, s in (("fixed", 1.0), ("tf.data", 2.0)))
            >>> {name: found.median for name, found in row.against(peer).items()}
            {'speed': 2.0, 'time': 0.5, 'cpu': 1.0}
        """
        return {
            "speed": ratio(peer.seconds, self.seconds),
            "time": ratio(self.seconds, peer.seconds),
            "cpu": ratio(self.cpu_seconds, peer.cpu_seconds),
        }
