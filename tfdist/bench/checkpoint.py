"""Checkpoints: what a save costs training, its bytes, and how long going on takes, beside Keras' callback."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfdist.bench import machine
from tfdist.bench.ratio import Quartiles, quartiles, ratio
from tfdist.validation import integer, number

__all__ = ["NONE", "PEER", "WAYS", "Report", "Setup", "Way", "run"]

NONE = "no saves"
PEER = "keras"
#: what takes turns; "waits" is tfdist with asynchronous=False
WAYS = (NONE, PEER, "tfdist, waits", "tfdist")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        megabytes: sizes of what is saved: weights and the two slots of Adam.
        saves: in one call of `fit`.
        steps: from one save to the next.
        batch_size: examples of a step.
        rounds: measurements of each way.
    """

    megabytes: Sequence[float] = (1.0, 10.0, 100.0)
    saves: int = 5
    steps: int = 10
    batch_size: int = 64
    rounds: int = 7

    def __post_init__(self) -> None:
        for size in self.megabytes:
            number("megabytes", size, minimum=0.1)
        for name in ("saves", "steps", "batch_size", "rounds"):
            integer(name, getattr(self, name), minimum=1)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train a model with a state of one size.

    Attributes:
        megabytes: of the state, as asked for.
        name: from `WAYS`.
        saves: in one call of `fit`.
        seconds: of one call of `fit`, one per round; all of it counts, also the wait for the last save.
        stops: seconds from the end of a step to the begin of the next where there is a save, beyond those where there
            is none; the mean of one call of `fit`, one per round.
        starts: seconds from calling `fit` to its first step where it goes on from a backup, one per round.
        bytes: of one backup on the disk.
    """

    megabytes: float
    name: str
    saves: int
    seconds: Sequence[float]
    stops: Sequence[float]
    starts: Sequence[float]
    bytes: int

    def added(self, without: "Way") -> list[float]:
        """Return the seconds that a save adds to training, one per round; noise can make one negative.

        Example:
            >>> none = Way(megabytes=1, name=NONE, saves=2, seconds=[1.0], stops=[0.0], starts=[0.0], bytes=0)
            >>> Way(megabytes=1, name=PEER, saves=2, seconds=[1.5], stops=[0.2], starts=[0.1], bytes=9).added(none)
            [0.25]
        """
        return [(a - b) / self.saves for a, b in zip(self.seconds, without.seconds, strict=True)]

    def restores(self, without: "Way") -> list[float]:
        """Return the seconds that going on from a backup takes, one per round."""
        return [a - b for a, b in zip(self.starts, without.starts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was measured, and the machine.

    Attributes:
        setup: what was measured.
        ways: every way with every size.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: Setup
    ways: Sequence[Way]
    machine: Mapping[str, str]

    def way(self, megabytes: float, name: str) -> Way:
        """Return one way with one size."""
        return next(way for way in self.ways if (way.megabytes, way.name) == (megabytes, name))

    def added(self, way: Way) -> Quartiles:
        """Return the seconds that a save adds to the whole of training."""
        return quartiles(way.added(self.way(way.megabytes, NONE)))

    def share(self, way: Way) -> Quartiles:
        """Return what part saves add to the time of training, with so many steps between them."""
        none = self.way(way.megabytes, NONE)
        return quartiles([a / b - 1 for a, b in zip(way.seconds, none.seconds, strict=True)])

    def restore(self, way: Way) -> Quartiles:
        """Return the seconds that going on from a backup takes."""
        return quartiles(way.restores(self.way(way.megabytes, NONE)))

    def times_of_peer(self, way: Way) -> Quartiles:
        """Return how many times as long training stops for the peer's saves."""
        return ratio(self.way(way.megabytes, PEER).stops, way.stops)

    def to_json(self) -> str:
        """Return the report as JSON, with what follows from the measurements."""
        results = [
            {
                "megabytes": way.megabytes,
                "way": way.name,
                "bytes": way.bytes,
                "stop per save": asdict(quartiles(way.stops)),
                "stop for the peer's / this": asdict(self.times_of_peer(way)),
                "added per save": asdict(self.added(way)),
                "share of training": asdict(self.share(way)),
                "restore": asdict(self.restore(way)),
            }
            for way in self.ways
            if way.name != NONE
        ]
        return json.dumps({**asdict(self), "results": results}, indent=2)


def run(setup: Setup, directory: Path | None = None, *, on_turn: Callable[[str], None] = lambda what: None) -> Report:
    """Let all ways take turns, and return the report.

    Args:
        setup: what to measure.
        directory: where backups are written, on the disk that is to be measured. Default: that of temporary files.
        on_turn: told what is done next.

    Example:
        >>> run(Setup(megabytes=[1.0], rounds=3)).way(1.0, "tfdist").bytes                   # doctest: +SKIP
        1003112
    """
    from tfdist.bench.checkpoint_arms import Trained

    about, ways = machine.describe(), list[Way]()
    for size in setup.megabytes:
        on_turn(f"{size:g} MB: building the model")
        trained = Trained(size, steps=setup.steps, saves=setup.saves, batch_size=setup.batch_size)
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        stops: dict[str, list[float]] = {name: [] for name in WAYS}
        starts: dict[str, list[float]] = {name: [] for name in WAYS}
        sizes: dict[str, int] = {}
        for turn in range(setup.rounds + 1):  # the first, in which functions are traced, is not counted
            first = turn % len(WAYS)
            for name in WAYS[first:] + WAYS[:first]:
                which = f"round {turn} of {setup.rounds}" if turn else "warming up"
                on_turn(f"{size:g} MB: {name}, {which}")
                with tempfile.TemporaryDirectory(prefix="tfdist-bench-", dir=directory) as folder:
                    took, stop = trained.fit(name, Path(folder, "one"))
                    sizes[name] = trained.back_up(name, Path(folder, "two"))
                    start = trained.go_on(name, Path(folder, "two"))
                if turn:
                    seconds[name].append(took)
                    stops[name].append(stop)
                    starts[name].append(start)
        ways += [
            Way(
                megabytes=size,
                name=name,
                saves=setup.saves,
                seconds=seconds[name],
                stops=stops[name],
                starts=starts[name],
                bytes=sizes[name],
            )
            for name in WAYS
        ]
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, ways=ways, machine=about)
