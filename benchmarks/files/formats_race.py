"""Reading files of other libraries, mixing sources and packing sequences, by tfdist and by those libraries."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.files.data_race import kept_folder
from benchmarks.peer_environment import PeerEnvironment
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine

__all__ = ["BATCH", "RACES", "FormatsBench", "FormatsReport", "Race", "command"]

BATCH = {"tar": 64, "MDS arrays": 64, "MDS pictures": 64, "mixing": 1024, "packing": 8}
#: what both peers' environment has, without what they require besides: an empty module takes the place of torch
REQUIREMENTS = (
    "--no-deps",
    *("webdataset==1.0.2", "mosaicml-streaming==0.13.0", "numpy==2.1.3"),
    *("braceexpand==0.1.7", "pyyaml==6.0.4", "tqdm==4.70.1", "zstandard==0.25.0", "catalogue==2.0.10"),
    *("filelock==4.3.1", "typing_extensions==4.16.0", "xxhash==4.1.0", "pillow==13.0.0"),
)


@dataclass(frozen=True)
class Race:
    """Two ways whose times are compared, and the requirement for ``over`` divided by ``under``."""

    subject: str
    over: str
    under: str
    bound: float
    at_least: bool = True

    def is_met(self, value: Quartiles) -> bool:
        return value.median >= self.bound if self.at_least else value.median <= self.bound


RACES = (
    Race("tar", "WebDataset", "tfdist", 2.0),
    Race("MDS arrays", "MosaicML, batches", "tfdist", 1.5),
    Race("MDS arrays", "MosaicML, dicts", "tfdist", 1.5),
    Race("MDS pictures", "MosaicML, batches", "tfdist", 1.5),
    Race("MDS pictures", "MosaicML, dicts", "tfdist", 1.5),
    Race("mixing", "four, equal shares", "one source", 1.05, at_least=False),
    Race("mixing", "four, unequal shares", "one source", 1.05, at_least=False),
    Race("packing", "loop in tf.data", "tfdist", 3.0),
)


@dataclass(frozen=True, kw_only=True)
class FormatsBench(Suite):
    """Measure reading of files of other libraries, mixing and packing, by tfdist, its peers and loops in tf.data.

    \b
    tar            pictures in four shards, shuffled over all; WebDataset with a buffer of 1,000, lists of 64
    MDS arrays     uint8 [80, 80, 3], shuffled over all; MosaicML's reader in a random order, samples as dicts or
                   stacked into batches
    MDS pictures   the same with bytes
    mixing         rows of four directories in equal and in unequal shares; beside one directory with all rows
    packing        lists of integers in rows of 512; a Python loop over the same records in tf.data

    tfdist's batches are tensors in tf.data. Batches of the peers are lists or arrays of NumPy, which they read in
    processes of their own. The second pass of each is timed. All sides take turns. The peers are installed into an
    environment in the folder, which needs a package index; torch is not installed, because no side uses it. The
    benchmark needs 1 GB in the folder, and takes about 5 minutes on 2 cores.
    """

    images: int = option(12_000, "Pictures, and arrays, that are read.", minimum=256)
    rows: int = option(400_000, "Rows that are read of one source, or of four.", minimum=4096)
    documents: int = option(2000, "Lists that are packed; of 175 integers in the mean.", minimum=64)
    rounds: int = option(5, "Measurements of each side.")
    quick: bool = option(False, "Few examples and one round: whether it runs, not how fast it is.")
    no_peers: bool = option(False, "Leave out what needs a package index: WebDataset and MosaicML's streaming.")
    directory: str | None = option(
        None,
        "Make data and environment there and keep them; what is there already is used. Default: a temporary folder.",
        metavar="FOLDER",
    )

    def examples(self, subject: str) -> int:
        return {"mixing": self.rows, "packing": self.documents}.get(subject, self.images)

    def run(self, told: Told = untold) -> "FormatsReport":
        from benchmarks.files.formats_sides import prepare, sides

        setup = self
        if self.quick:
            setup = dataclasses.replace(self, images=256, rows=8192, documents=128, rounds=1, quick=False)
        with machine.observed() as about, kept_folder(setup.directory) as folder:
            told("making the data")
            prepare(setup, folder)
            ways: dict[tuple[str, str], Callable[[], tuple[float, float]]] = {
                key: _timed(side) for key, side in sides(setup, folder).items()
            }
            if not setup.no_peers:
                told("installing WebDataset and MosaicML's streaming")
                ways |= _peers(folder)
            named = {f"{subject}: {way}": (subject, way) for subject, way in ways}
            for name, key in named.items():
                told(f"{name}, warming up")
                ways[key]()

            def measure(name: str, number: int) -> tuple[float, float]:
                return ways[named[name]]()

            found = in_turns(sorted(named), measure, count=setup.rounds, told=told, first=1)
        times = {
            key: {"seconds": [one[0] for one in found[name]], "cpu_seconds": [one[1] for one in found[name]]}
            for name, key in named.items()
        }
        measured: dict[str, dict[str, Mapping[str, Sequence[float]]]] = {}
        for (subject, way), both in times.items():
            measured.setdefault(subject, {})[way] = both
        return FormatsReport(setup=setup, measured=measured, machine=about)


def _timed(side: Callable[[], Any]) -> Callable[[], tuple[float, float]]:
    """A side that returns its wall seconds and its CPU seconds."""

    def turn() -> tuple[float, float]:
        began = time.perf_counter(), time.process_time()
        side()
        return time.perf_counter() - began[0], time.process_time() - began[1]

    return turn


def _peers(folder: Path) -> dict[tuple[str, str], Callable[[], tuple[float, float]]]:
    environment = PeerEnvironment(folder, *REQUIREMENTS, side=Path(__file__).with_name("formats_peers.py"))

    def asked(what: str, name: str, **setup: Any) -> Callable[[], tuple[float, float]]:
        def turn() -> tuple[float, float]:
            found: tuple[float, float] = tuple(environment.ask(what, data=str(folder / name), **setup))
            return found

        return turn

    found = {("tar", "WebDataset"): asked("webdataset", "tars", batch=BATCH["tar"])}
    for subject, name in (("MDS arrays", "mds-arrays"), ("MDS pictures", "mds-pictures")):
        for way, batch in (("batches", BATCH[subject]), ("dicts", 0)):
            found[subject, f"MosaicML, {way}"] = asked("mosaicml", name, batch=batch)
    return found


@dataclass(frozen=True, kw_only=True)
class FormatsReport(Report):
    """All measurements."""

    setup: FormatsBench
    # subject -> way -> wall "seconds", and "cpu_seconds" of the whole process, one per round
    measured: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]

    def compared(self) -> Iterator[tuple[Race, dict[str, Quartiles]]]:
        """Yield each race whose sides were measured, with the ratios of its times."""
        for race in RACES:
            ways = self.measured.get(race.subject, {})
            if race.over in ways and race.under in ways:
                over, under = ways[race.over], ways[race.under]
                yield race, {name: ratio(over[name], under[name]) for name in ("seconds", "cpu_seconds")}

    def derived(self) -> dict[str, Any]:
        return {"ratios": [{**dataclasses.asdict(race), **found} for race, found in self.compared()]}

    def shown(self) -> Iterator[Table | str]:
        rows = []
        for subject, ways in self.measured.items():
            scale = 1e6 / self.setup.examples(subject)
            for way, times in sorted(ways.items()):
                shown = [f"{scale * quartiles(times[name]).median:.2f}" for name in ("seconds", "cpu_seconds")]
                rows.append([subject, way, *shown])
        yield Table(("", "", "us per example", "CPU us per example"), rows)
        rows = [
            [
                race.subject,
                f"{race.over} / {race.under}",
                *map(str, found.values()),
                f"{'>=' if race.at_least else '<='} {race.bound:g}",
                ", ".join(
                    f"{what} {'met' if race.is_met(found[name]) else 'not met'}"
                    for what, name in (("clock", "seconds"), ("CPU", "cpu_seconds"))
                ),
            ]
            for race, found in self.compared()
        ]
        yield Table(("", "", "time", "CPU time", "asked for", ""), rows)
        if self.setup.no_peers:
            yield "WebDataset and MosaicML's streaming were left out."
        yield self.ran_on()


command = suite_command(
    "formats",
    FormatsBench,
    examples={
        "python -m benchmarks formats --quick": "whether it runs, not how fast it is",
        "python -m benchmarks formats --json formats.json": "as docs/benchmarks-data.md has it",
    },
    page="benchmarks-data",
)
