"""Train models of Keras' ecosystem under strategies, compare with one device, keep the results, and print a table."""

import argparse
import dataclasses
import datetime
import fnmatch
import importlib.metadata
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ecosystem.results import FILE, Result, Results, reason, tables
from ecosystem.rows import ROWS_OF_THE_TABLE
from tfdist import verify
from tfdist.errors import ConfigError
from tfdist.validation import nearest
from tfdist.verify import column
from tfdist.verify.column import Column
from tfdist.verify.feature import Feature
from tfdist.verify.matrix_report import Cell

#: the columns of the page: whole models on each replica, and models in parts
GROUPS = (
    ("mirrored-2", "multi-worker-2x1", "multi-worker-native-2", "ring-2", "parameter-server-2"),
    ("sharded-1", "sharded-3", "model-parallel-1x2", "pipeline-2"),
)
_PACKAGES = ("tensorflow", "keras", "keras-hub", "keras-rs", "keras-tuner")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Missing(Feature):
    """A row that is trained in some columns alone: those of which there is no result yet."""

    columns: frozenset[str]

    def applies(self, column: Column) -> bool:
        return column.name in self.columns and super().applies(column)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where every cell is right, 1 where one is not, 2 where nothing was run."""
    given = _parsed(arguments)
    try:
        rows = _rows(given.model)
        columns = column.select(given.strategy or [name for group in GROUPS for name in group])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    results = Results(Path(given.results))
    lacking = [missing(row, columns, results, versions, again=given.again) for row in rows]
    wanted = [row for row in lacking if row.columns]
    left = [one for one in columns if any(row.applies(one) for row in wanted)]
    print(f"{sum(len(row.columns) for row in wanted)} of {len(rows) * len(columns)} cells to run", flush=True)
    if left:
        verify.run(
            wanted, left, jobs=given.jobs, deadline_seconds=given.timeout_seconds, on_cell=_Keeping(results, versions)
        )
    print("\n" + tables(results, {name: row.summary for name, row in ROWS_OF_THE_TABLE.items()}, GROUPS), end="")
    names = {row.name for row in rows}, {one.name for one in columns}
    return int(any(r.cell.is_bad for r in results if r.cell.feature in names[0] and r.cell.column in names[1]))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ecosystem", description=__doc__)
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="this row, or glob; several")
    parser.add_argument("--strategy", action="append", default=[], metavar="NAME", help="this column, or glob; several")
    parser.add_argument("--results", default=str(FILE), metavar="FILE", help="what came of earlier runs, %(default)s")
    parser.add_argument("--again", action="store_true", help="run cells again that are right already")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="columns at once, %(default)s by default")
    parser.add_argument("--timeout-seconds", type=float, default=900.0, metavar="X", help="of a cell, %(default)s")
    return parser.parse_args(arguments)


def _rows(patterns: Sequence[str]) -> list[Feature]:
    for pattern in patterns:
        if not fnmatch.filter(ROWS_OF_THE_TABLE, pattern):
            meant = nearest(pattern, list(ROWS_OF_THE_TABLE))
            raise ConfigError(
                f"no model is named {pattern!r}.{meant} Give a name or a glob of {', '.join(ROWS_OF_THE_TABLE)}.",
                name="--model",
                received=pattern,
            )
    every = ROWS_OF_THE_TABLE.values()
    return [row for row in every if not patterns or any(fnmatch.fnmatchcase(row.name, one) for one in patterns)]


def missing(
    row: Feature, columns: Sequence[Column], results: Results, versions: Mapping[str, str], *, again: bool
) -> _Missing:
    def is_there(one: Column) -> bool:
        kept = results.get(row.name, one.name)
        return not again and kept is not None and kept.is_of(versions)

    return _Missing(**vars(row), columns=frozenset(one.name for one in columns if not is_there(one)))


class _Keeping:
    """Keeps and prints each cell as it comes, from several threads."""

    def __init__(self, results: Results, versions: Mapping[str, str]) -> None:
        self._results, self._versions = results, versions
        self._lock = threading.Lock()

    def __call__(self, cell: Cell) -> None:
        if cell.status == "left out":
            return
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        with self._lock:
            told = cell.detail if cell.is_bad else cell.detail.partition("\n")[0]
            told = reason(cell) if cell.status == "refused" else told
            self._results.add(Result(dataclasses.replace(cell, detail=told), self._versions, today))
            print(f"{cell.column:24}{cell.feature:32}{cell.text:16}{cell.seconds:6.0f} s", flush=True)
            for line in cell.detail.splitlines()[:12] if cell.status != "green" else ():
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
