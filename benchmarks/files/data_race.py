"""Writing, reading and resuming TFRecord data by tfdist, TensorFlow's own tools and grain."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine
from tfdist.planner.plot_style import caption, figure_of, plain

__all__ = ["BATCH", "PEERS", "TARGETS", "DataBench", "DataReport", "DataRow", "DataTarget", "command", "measured"]

BATCH = {"rows": 1024, "images": 64}
_TITLES = {"rows": "Small examples: 40 numbers and a label", "images": "Pictures of 60 KB"}
_LAYOUTS = {
    "generic": "TFRecords of other programs",
    "fixed": "TFRecords written by tfdist",
    "extent": "TFRecords written by tfdist",
}
_READERS = {"native": "compiled reader", "numpy": "reader in NumPy"}
_SERIES = (("cpu", "#9a9a9a", "examples per second of CPU time"), ("speed", "#1f6fb4", "examples per second"))


@dataclass(frozen=True, kw_only=True)
class DataBench(Suite):
    """Measure writing, reading and resuming of TFRecord data, compared with TensorFlow's own tools and grain.

    \b
    tf.train.Example   the peer of writing: an Example for each, serialized, into tf.io.TFRecordWriter
    tf.data            the peer of reading: TFRecordDataset in the order of the files, prefetched;
                       tf.io.parse_example of whole batches on two threads; checksums, no shuffling
    generic            tfdist, shuffled over all rows, of the peer's files, indexed in place; parsed
    fixed              tfdist, shuffled, as it writes rows of one length: nothing is parsed
    extent             tfdist, shuffled, as it writes pictures: nothing is parsed
    numpy, native      without and with the compiled reader; verify="always": every checksum
    later epochs       checked when a record was read first: verify="first", the default
    grain              array_record (groups of one) shuffled and parsed, where both are installed

    Resuming is the time from making the dataset to its first batch, compared with tf.data and `skip`. All sides take
    turns. Ratios to the peer are from the same round: median [lower-upper quartile]. The benchmark needs 1 GB in the
    folder for temporary files, and takes about 3 minutes on 2 cores.
    """

    rows: int = option(500_000, "Rows that are read.", minimum=4096)
    images: int = option(4000, "Pictures that are read.", minimum=256)
    written_rows: int = option(200_000, "Rows per write.", minimum=4)
    written_images: int = option(1000, "Pictures per write.", minimum=4)
    rounds: int = option(5, "Measurements of each side.")
    quick: bool = option(False, "Few examples and one round: whether it runs, not how fast it is.")
    directory: str | None = option(
        None,
        "Make the data there and keep them; what is there already is used. Default: a temporary folder.",
        metavar="FOLDER",
    )

    def examples(self, kind: str, subject: str) -> int:
        if kind == "resume":
            return 1
        if subject == "write":
            return self.written_rows if kind == "rows" else self.written_images
        return self.rows if kind == "rows" else self.images

    def run(self, told: Told = untold) -> "DataReport":
        from benchmarks.files.data_sides import prepare, reading, resuming, writing

        setup = self
        if self.quick:
            setup = dataclasses.replace(
                self, rows=8192, images=256, written_rows=500, written_images=50, rounds=1, quick=False
            )
        with machine.observed() as about, kept_folder(setup.directory) as folder:
            told("making the data")
            prepare(setup, folder)
            rows = measured("write", writing(setup, folder), setup, told)
            arms, left_out = reading(folder)
            rows += measured("read", arms, setup, told)
            arms, state_bytes = resuming(setup, folder)
            rows += measured("resume", arms, setup, told)
        return DataReport(setup=setup, rows=rows, state_bytes=state_bytes, left_out=left_out, machine=about)


@contextlib.contextmanager
def kept_folder(directory: str | None) -> Iterator[Path]:
    """Yield the folder of this name, made if it is missing; a temporary one for None."""
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        yield Path(directory).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="tfdist-bench-") as folder:
        yield Path(folder)


def measured(
    subject: str, arms: Mapping[tuple[str, str], Callable[[], Any]], setup: DataBench, told: Told
) -> "list[DataRow]":
    """Let all sides take turns, after an uncounted round, and return a row for each.

    ``arms``: (kind, way) -> a function that writes or reads all examples once.
    """
    named = {f"{kind}: {way}": (kind, way) for kind, way in arms}

    def measure(name: str, number: int) -> tuple[float, float]:
        began = time.perf_counter(), time.process_time()
        arms[named[name]]()
        return time.perf_counter() - began[0], time.process_time() - began[1]

    for name in named:  # functions are traced and files read
        told(f"{subject} {name}, warming up")
        measure(name, 0)
    found = in_turns(list(named), measure, count=setup.rounds, told=told, subject=f"{subject} ", first=1)
    return [
        DataRow(
            subject, kind, way, setup.examples(kind, subject), *(list(each) for each in zip(*found[name], strict=True))
        )
        for name, (kind, way) in named.items()
    ]


@dataclass(frozen=True)
class DataTarget:
    """The bound that a ratio must meet."""

    of: str  # "cpu" or "speed" (examples per second) or "time", against the peer
    bound: float  # the number
    at_least: bool  # whether the ratio has to be at least the number; otherwise at most

    def is_met(self, value: Quartiles) -> bool:
        """Return whether the median meets the bound."""
        return value.median >= self.bound if self.at_least else value.median <= self.bound

    def __str__(self) -> str:
        return f"{self.of} {'>=' if self.at_least else '<='} {self.bound:g}"


#: (subject, kind, way) -> the requirement
TARGETS: Mapping[tuple[str, str, str], DataTarget] = {
    ("write", "rows", "tfdist"): DataTarget("cpu", 0.06, at_least=False),
    ("write", "images", "tfdist"): DataTarget("cpu", 0.6, at_least=False),
    ("read", "rows", "generic, numpy"): DataTarget("speed", 1.0, at_least=True),
    ("read", "rows", "generic, native"): DataTarget("speed", 2.0, at_least=True),
    ("read", "rows", "fixed, native"): DataTarget("speed", 1.8, at_least=True),
    ("read", "images", "extent, numpy"): DataTarget("speed", 1.0, at_least=True),
    ("read", "images", "extent, native"): DataTarget("speed", 1.2, at_least=True),
    ("resume", "resume", "in the middle"): DataTarget("time", 1.2, at_least=False),
}
PEERS = {"write": "tf.train.Example", "read": "tf.data", "resume": "fresh start"}
_PEER_OF = {"tf.data, skip": "tf.data, fresh start"}


@dataclass(frozen=True)
class DataRow:
    """One side, which is measured once per round."""

    subject: str  # "write", "read" or "resume"
    kind: str  # "rows" or "images"; "resume"
    way: str  # the side, and its way
    examples: int  # per turn
    seconds: Sequence[float]  # wall clock, per round
    cpu_seconds: Sequence[float]  # of the whole process with all its threads, per round

    @property
    def target(self) -> DataTarget | None:
        """The bound that the ratio must meet; None if there is none."""
        return TARGETS.get((self.subject, self.kind, self.way))

    @property
    def peer(self) -> str:
        """The way with which it is compared."""
        return _PEER_OF.get(self.way, PEERS[self.subject])

    def against(self, peer: "DataRow") -> dict[str, Quartiles]:
        """Return the ratios to a peer, round by round: speed (above 1 this one is faster), time, and CPU time.

        Example:
            >>> row = DataRow("read", "rows", "fixed", 10, [1.0], [2.0])
            >>> peer = DataRow("read", "rows", "tf.data", 10, [2.0], [2.0])
            >>> {name: found.median for name, found in row.against(peer).items()}
            {'speed': 2.0, 'time': 0.5, 'cpu': 1.0}
        """
        return {
            "speed": ratio(peer.seconds, self.seconds),
            "time": ratio(self.seconds, peer.seconds),
            "cpu": ratio(self.cpu_seconds, peer.cpu_seconds),
        }


@dataclass(frozen=True, kw_only=True)
class DataReport(Report):
    """All measurements."""

    setup: DataBench
    rows: Sequence[DataRow]  # one for each side; the first of its kind is the peer of the others
    state_bytes: Mapping[str, int]  # the bytes of a reader's state: tfdist's, and tf.data's with a shuffle buffer
    left_out: Mapping[str, str]  # a side that could not be measured -> the reason

    def peer(self, row: DataRow) -> DataRow:
        """Return the row of the peer with which a row is compared."""
        wanted = (row.subject, row.kind, row.peer)
        return next(each for each in self.rows if (each.subject, each.kind, each.way) == wanted)

    def derived(self) -> dict[str, Any]:
        results = []
        for row in self.rows:
            against, target = row.against(self.peer(row)), row.target
            results.append(
                {
                    "subject": row.subject,
                    "kind": row.kind,
                    "way": row.way,
                    "peer": row.peer,
                    **against,
                    "target": None if target is None else str(target),
                    "is_met": None if target is None else target.is_met(against[target.of]),
                }
            )
        return {"results": results}

    def shown(self) -> Iterator[Table | str]:
        for subject in ("write", "read"):
            rows = [
                [row.kind, row.way, *_each(row, 1e6), *_ratios(self, row, "speed", "cpu")]
                for row in self.rows
                if row.subject == subject
            ]
            yield Table((subject, "", "us per example", "CPU us per example", "speed", "CPU", "asked for"), rows)
        rows = [
            [row.way, *_each(row, 1e3), *_ratios(self, row, "time", "cpu")]
            for row in self.rows
            if row.subject == "resume"
        ]
        yield Table(("first batch", "ms", "CPU ms", "time", "CPU", "asked for"), rows)
        setup = self.setup
        yield (
            f"Where reading stands: {self.state_bytes['tfdist']:,} bytes (asked for: less than 1024); a checkpoint of "
            f"tf.data's iterator with {max(1, setup.images // 10):,} pictures in its shuffle buffer: "
            f"{self.state_bytes['tf.data']:,} bytes."
        )
        yield (
            f"{setup.rows:,} rows in batches of {BATCH['rows']}, {setup.images:,} pictures in batches of "
            f"{BATCH['images']}; {setup.written_rows:,} rows and {setup.written_images:,} pictures written by one "
            f"process; {setup.rounds} rounds; median [lower-upper quartile]; speed, time and CPU are ratios to the "
            "first line of their kind, skip's to tf.data's fresh start."
        )
        yield from (f"{name} left out: {why}." for name, why in self.left_out.items())
        yield self.ran_on()

    def draw(self, path: Path) -> None:
        figure = figure_of(10, 8, dpi=130)
        counts = [len(_read(self, kind)) for kind in _TITLES]
        panels = figure.subplots(len(_TITLES), 1, sharex=True, height_ratios=[max(1, count) for count in counts])
        for axes, kind in zip(panels, _TITLES, strict=True):
            _bars(axes, self, kind)
        panels[-1].set_xlabel("times TensorFlow's TFRecordDataset (1: as fast; longer bars are better)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(
            "tfdist.data reads in shuffled order; TFRecordDataset reads file after file\n"
            f"median and quartiles of {self.setup.rounds} rounds\n{caption(self.machine)}",
            fontsize=11,
        )
        figure.savefig(path, format="png")


def _each(row: DataRow, scale: float) -> list[str]:
    shown = []
    for values in (row.seconds, row.cpu_seconds):
        median = scale * quartiles([value / row.examples for value in values]).median
        shown.append(f"{median:.2f}" if median < 100 else f"{median:.0f}")
    return shown


def _ratios(report: DataReport, row: DataRow, *names: str) -> list[str]:
    if row.way == row.peer or row.way == "tf.data, fresh start":
        return ["-"] * len(names) + [""]
    against, target = row.against(report.peer(row)), row.target
    asked = "" if target is None else f"{target}: {'met' if target.is_met(against[target.of]) else 'not met'}"
    return [*(str(against[name]) for name in names), asked]


def label(way: str) -> str:
    """Return the name of a way of reading in the picture.

    Example:
        >>> label("fixed, numpy, later epochs")
        'TFRecords written by tfdist\\nreader in NumPy, checksums checked before'
    """
    layout, reader, *later = way.split(", ")
    return f"{_LAYOUTS[layout]}\n{_READERS[reader]}{', checksums checked before' if later else ''}"


def _read(report: DataReport, kind: str) -> list[Any]:
    return [row for row in report.rows if (row.subject, row.kind) == ("read", kind) and row.way != row.peer][::-1]


def _bars(axes: Any, report: DataReport, kind: str) -> None:
    rows = _read(report, kind)
    for offset, (name, colour, text) in enumerate(_SERIES):
        peers = [report.peer(row) for row in rows]
        found = [
            peer.against(row)["cpu"] if name == "cpu" else row.against(peer)["speed"]
            for row, peer in zip(rows, peers, strict=True)
        ]
        places = [place + 0.38 * (offset - 0.5) for place in range(len(rows))]
        error = [[one.median - one.lower for one in found], [one.upper - one.median for one in found]]
        medians = [one.median for one in found]
        axes.barh(places, medians, 0.36, xerr=error, color=colour, ecolor="#222222", capsize=3, label=text)
        for place, one in zip(places, found, strict=True):
            axes.text(one.upper + 0.05, place, f"{one.median:.2f}", va="center", fontsize=9)
    axes.axvline(1.0, color="#222222", linewidth=1)
    axes.set_yticks(range(len(rows)), [label(row.way) for row in rows])
    axes.margins(x=0.08)  # for the numbers beside the bars
    axes.set_xlim(left=0)
    axes.set_title(_TITLES[kind], loc="left", fontweight="bold")
    plain(axes)


command = suite_command(
    "data",
    DataBench,
    examples={
        "python -m benchmarks data --quick": "whether it runs, not how fast it is",
        "python -m benchmarks data --plot data.png": "as docs/benchmarks-data.md has it",
        "python -m benchmarks data --json - --rounds 9": "for programs",
    },
    page="benchmarks-data",
    has_picture=True,
)
