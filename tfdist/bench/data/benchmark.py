"""Data: writing, reading and resuming, tfdist beside TensorFlow's own tools and grain."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfdist.bench.data.rows import Row, Setup
from tfdist.measurement import machine

__all__ = ["Report", "run"]

Arms = Mapping[tuple[str, str], Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was measured, and the machine.

    Attributes:
        setup: what was measured.
        rows: a side each; the first of its kind is the peer of the others.
        state_bytes: how many bytes say where reading stands: tfdist's, and tf.data's with a shuffle buffer.
        left_out: what could not be measured -> why.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: Setup
    rows: Sequence[Row]
    state_bytes: Mapping[str, int]
    left_out: Mapping[str, str]
    machine: Mapping[str, str]

    def peer(self, row: Row) -> Row:
        """Return what a row is compared with."""
        wanted = (row.subject, row.kind, row.peer)
        return next(each for each in self.rows if (each.subject, each.kind, each.way) == wanted)

    def to_json(self) -> str:
        """Return the report as JSON, ratios and targets included."""
        results = []
        for row in self.rows:
            against = row.against(self.peer(row))
            target = row.target
            results.append(
                {
                    "subject": row.subject,
                    "kind": row.kind,
                    "way": row.way,
                    "peer": row.peer,
                    **{name: asdict(value) for name, value in against.items()},
                    "target": None if target is None else str(target),
                    "is_met": None if target is None else target.is_met(against[target.of]),
                }
            )
        return json.dumps({**asdict(self), "results": results}, indent=2)


def run(setup: Setup, directory: Path | None = None, *, on_turn: Callable[[str], None] = lambda what: None) -> Report:
    """Make the data, measure, and return the report.

    Args:
        setup: what to measure.
        directory: where the data are made, and stay; what is there already is used. Default: a temporary folder.
        on_turn: told what is done next.

    Example:
        >>> setup = Setup(rows=4096, images=256, written_rows=100, written_images=10, rounds=1)
        >>> run(setup).state_bytes["tfdist"]                          # doctest: +SKIP
        189
    """
    from tfdist.bench.data.arms import prepare, reading, resuming, writing

    about = machine.describe()
    with _folder(directory) as folder:
        on_turn("making the data")
        prepare(setup, folder)
        rows = _measure("write", writing(setup, folder), setup, on_turn)
        arms, left_out = reading(folder)
        rows += _measure("read", arms, setup, on_turn)
        arms, state_bytes = resuming(setup, folder)
        rows += _measure("resume", arms, setup, on_turn)
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, rows=rows, state_bytes=state_bytes, left_out=left_out, machine=about)


@contextlib.contextmanager
def _folder(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="tfdist-bench-") as folder:
        yield Path(folder)


def _measure(subject: str, arms: Arms, setup: Setup, on_turn: Callable[[str], None]) -> list[Row]:
    """Let all sides take turns; each round begins with the next one, so that none is always behind the same other."""
    turns = list(arms.items())
    found: dict[tuple[str, str], list[tuple[float, float]]] = {name: [] for name in arms}
    for number in range(setup.rounds + 1):  # the first, in which functions are traced and files read, is not counted
        first = number % len(turns)
        for (kind, way), arm in turns[first:] + turns[:first]:
            on_turn(f"{subject} {kind}: {way}, " + (f"round {number} of {setup.rounds}" if number else "warming up"))
            began = time.perf_counter(), time.process_time()
            arm()
            ended = time.perf_counter(), time.process_time()
            if number:
                found[kind, way].append((ended[0] - began[0], ended[1] - began[1]))
    return [
        Row(subject, kind, way, setup.examples(kind, subject), [t[0] for t in times], [t[1] for t in times])
        for (kind, way), times in found.items()
    ]
