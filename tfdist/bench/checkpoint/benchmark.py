"""Checkpoints: what a save costs training, its bytes, and how long going on takes, beside Keras' callback."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfdist.bench.checkpoint.ways import NONE, PEER, WAYS, Setup, Way
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles, ratio

__all__ = ["Report", "run"]


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
    from tfdist.bench.checkpoint.arms import Trained

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
