"""Checkpoints: the cost of a save for training, its bytes, and the time to resume, compared with Keras' callback."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.planner import machine

__all__ = ["NONE", "PEER", "WAYS", "CheckpointBench", "CheckpointReport", "Way", "command"]

NONE = "no saves"
PEER = "keras"
#: the ways that take turns; "waits" is tfdist with asynchronous=False
WAYS = (NONE, PEER, "tfdist, waits", "tfdist")


@dataclass(frozen=True, kw_only=True)
class CheckpointBench(Suite):
    """Measure the time for which training stops for checkpoints, their bytes, and the time to resume.

    `fit` trains eight dense layers with Adam in four ways that take turns:

    \b
    no saves        nothing is saved
    keras           the peer: keras.callbacks.BackupAndRestore, one file, no fsync or checksums
    tfdist, waits   tfdist.callbacks.BackupAndRestore(asynchronous=False), on the disk first
    tfdist          the same with its default: training goes on while a backup is written

    "Stops" is the time from the end of a step to the start of the next, minus the same time without a save. "Keras
    stops" is the peer's stop over this one's in the same round. "Adds" is the time that one save adds to all of `fit`:
    the call with saves minus the call without, divided by the number of saves. It includes the wait for the last backup
    and the removal of all. On a busy machine it is mostly noise. "Restore" is the time from calling `fit` of a new
    model to its first step, minus that of a model without a backup. Figures are medians [lower to upper quartile] over
    rounds.

    Runs on the CPU. The defaults write 20 GB, at most 0.5 GB at a time, and take about 10 minutes on 2 cores.
    """

    megabytes: Sequence[float] = option(
        (1.0, 10.0, 100.0), "Size of weights and slots; may be given several times.", minimum=0.1
    )
    saves: int = option(5, "In one fit.")
    steps: int = option(10, "From save to save.")
    batch_size: int = option(64, "Of a step.")
    rounds: int = option(7, "Of each way.")
    directory: str | None = option(
        None, "Where backups are written and removed again. Default: the folder of temporary files.", metavar="FOLDER"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.directory is not None and not Path(self.directory).is_dir():
            raise ConfigError(f"directory is {self.directory!r}, which is no folder. Make it, or name another.")

    def run(self, told: Told = untold) -> "CheckpointReport":
        from benchmarks.jobs.checkpoint_training import Trained

        ways = list[Way]()
        with machine.observed() as about:
            for size in self.megabytes:
                told(f"{size:g} MB: building the model")
                trained = Trained(size, steps=self.steps, saves=self.saves, batch_size=self.batch_size)

                def measure(name: str, number: int, trained: Trained = trained) -> tuple[float, float, float, int]:
                    with tempfile.TemporaryDirectory(prefix="tfdist-bench-", dir=self.directory) as folder:
                        took, stop = trained.fit(name, Path(folder, "one"))
                        written = trained.back_up(name, Path(folder, "two"))
                        return took, stop, trained.go_on(name, Path(folder, "two")), written

                for name in WAYS:  # not counted, because functions are traced
                    told(f"{size:g} MB: {name}, warming up")
                    measure(name, 0)
                found = in_turns(WAYS, measure, count=self.rounds, told=told, subject=f"{size:g} MB: ", first=1)
                for name, measurements in found.items():
                    seconds, stops, starts, written = map(list, zip(*measurements, strict=True))
                    way = {"megabytes": size, "name": name, "saves": self.saves, "bytes": written[-1]}
                    ways.append(Way(**way, seconds=seconds, stops=stops, starts=starts))
        return CheckpointReport(setup=self, ways=ways, machine=about)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train a model with a state of one size."""

    megabytes: float  # requested size of the state
    name: str  # from `WAYS`
    saves: int  # in one call of `fit`
    seconds: Sequence[float]  # of one call of `fit`, one per round, including the wait for the last save
    # seconds from the end of a step to the start of the next with a save between them, minus those without a save; the
    # mean of one call of `fit`, one per round
    stops: Sequence[float]
    starts: Sequence[float]  # seconds from calling `fit` to its first step if it resumes from a backup, one per round
    bytes: int  # of one backup on the disk

    def added(self, without: "Way") -> list[float]:
        """Return the seconds that a save adds to training, one per round; noise can make one negative.

        Example:
            >>> none = Way(megabytes=1, name=NONE, saves=2, seconds=[1.0], stops=[0.0], starts=[0.0], bytes=0)
            >>> Way(megabytes=1, name=PEER, saves=2, seconds=[1.5], stops=[0.2], starts=[0.1], bytes=9).added(none)
            [0.25]
        """
        return [(a - b) / self.saves for a, b in zip(self.seconds, without.seconds, strict=True)]

    def restores(self, without: "Way") -> list[float]:
        """Return the seconds that it takes to resume from a backup, one per round."""
        return [a - b for a, b in zip(self.starts, without.starts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class CheckpointReport(Report):
    """All measurements."""

    setup: CheckpointBench
    ways: Sequence[Way]  # every way with every size

    def way(self, megabytes: float, name: str) -> Way:
        """Return one way with one size."""
        return next(way for way in self.ways if (way.megabytes, way.name) == (megabytes, name))

    def added(self, way: Way) -> Quartiles:
        """Return the seconds that a save adds to the whole of training."""
        return quartiles(way.added(self.way(way.megabytes, NONE)))

    def share(self, way: Way) -> Quartiles:
        """Return the part that saves add to the time of training, with this number of steps between them."""
        none = self.way(way.megabytes, NONE)
        return quartiles([a / b - 1 for a, b in zip(way.seconds, none.seconds, strict=True)])

    def restore(self, way: Way) -> Quartiles:
        """Return the seconds that it takes to resume from a backup."""
        return quartiles(way.restores(self.way(way.megabytes, NONE)))

    def times_of_peer(self, way: Way) -> Quartiles:
        """Return the stops for the peer's saves over those for this way's."""
        return ratio(self.way(way.megabytes, PEER).stops, way.stops)

    def derived(self) -> dict[str, Any]:
        results = [
            {
                "megabytes": way.megabytes,
                "way": way.name,
                "bytes": way.bytes,
                "stop per save": quartiles(way.stops),
                "peer over this": self.times_of_peer(way),
                "added per save": self.added(way),
                "share of training": self.share(way),
                "restore": self.restore(way),
            }
            for way in self.ways
            if way.name != NONE
        ]
        return {"results": results}

    def shown(self) -> Iterator[Table | str]:
        ratios = ("stops, ms per save", "keras stops", "adds, ms per save", "of training")
        yield Table(
            ("state", "", *ratios, "bytes", "restore, ms"),
            [[f"{way.megabytes:g} MB", way.name, *_cells(self, way)] for way in self.ways if way.name != NONE],
        )
        setup = self.setup
        fits = ", ".join(f"{_without(self, size):.2f} s" for size in setup.megabytes)
        yield (
            f"{setup.saves} saves in a fit, {setup.steps} steps of {setup.batch_size} examples from one to the next; a "
            f"fit without saves took {fits}; {setup.rounds} rounds; median [lower-upper quartile]."
        )
        yield self.ran_on()


def _cells(report: CheckpointReport, way: Way) -> list[str]:
    return [
        _milliseconds(quartiles(way.stops)),
        "-" if way.name == PEER else str(report.times_of_peer(way)),
        _milliseconds(report.added(way)),
        "{:.1%} [{:.1%} to {:.1%}]".format(*_three(report.share(way))),
        f"{way.bytes:,}",
        _milliseconds(report.restore(way)),
    ]


def _milliseconds(found: Quartiles) -> str:
    return "{:.1f} [{:.1f} to {:.1f}]".format(*(1000 * value for value in _three(found)))


def _three(found: Quartiles) -> tuple[float, float, float]:
    return found.median, found.lower, found.upper


def _without(report: CheckpointReport, megabytes: float) -> float:
    return quartiles(report.way(megabytes, NONE).seconds).median


command = suite_command(
    "checkpoint",
    CheckpointBench,
    examples={
        "python -m benchmarks checkpoint": "about 10 minutes on 2 cores",
        "python -m benchmarks checkpoint --megabytes 10 --rounds 2": "seconds",
        "python -m benchmarks checkpoint --directory /mnt/shared": "another disk",
    },
    page="benchmarks-recovery",
)
