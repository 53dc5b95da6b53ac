"""The tables of docs/matrix.md, from the cells of docs/matrix.json.

`python -m tests.goldens.matrix_tables REPORT.json ...` adds the reports of `tfdist verify --json` to the cells, with
today's date, and `make goldens` puts the tables into the page.
"""

import argparse
import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.goldens.public_names import ROOT
from tfdist.verify.column import COLUMNS
from tfdist.verify.feature import features

CELLS = ROOT / "docs" / "matrix.json"
#: the columns of each table: those of these strategies
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "replicas of one process": ("mirrored",),
    "replicas of several processes": ("multi-worker",),
    "the ring": ("ring",),
    "parameter servers": ("parameter-server",),
    "optimizers and weights in parts": ("sharded-data-parallel",),
    "meshes": ("model-parallel",),
    "pipelines": ("pipeline",),
}
# plain Keras under TensorFlow's strategies
_PLAIN = " (plain)"

# feature -> column -> (what the cell says, the day of its run)
Cells = dict[str, dict[str, tuple[str, str]]]


def read() -> Cells:
    """Return the cells of the features that there are, in their order."""
    found: dict[str, Any] = json.loads(CELLS.read_text(encoding="utf-8"))
    return {name: {column: (says, day) for column, (says, day) in found.get(name, {}).items()} for name in features()}


def write(cells: Cells) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in cells.items() if row]
    CELLS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def with_report(cells: Cells, report: Mapping[str, Any], day: str) -> Cells:
    """Return the cells with those of a report in the place of older ones."""
    found = {name: dict(row) for name, row in cells.items()}
    for cell in report["cells"]:
        column = cell["column"] + _PLAIN * cell["baseline"]
        found.setdefault(cell["feature"], {})[column] = (cell["text"], day)
    return found


def columns(strategies: Sequence[str], cells: Cells) -> list[str]:
    """Return the names of the columns of these strategies, each behind that of plain Keras."""
    names = [
        name for column in COLUMNS if column.strategy in strategies for name in (column.name + _PLAIN, column.name)
    ]
    return [name for name in names if any(name in row for row in cells.values())]


def overview() -> str:
    """The number of cells of each kind, and the days of their runs, for each column."""
    cells = read()
    lines = [
        "| column | green | refused | other numbers, or an error | no sense | not run | days of the runs |",
        "|---" * 7 + "|",
    ]
    for name in [name for strategies in FAMILIES.values() for name in columns(strategies, cells)]:
        kinds = Counter(_kind(row[name][0] if name in row else "") for row in cells.values())
        counts = " | ".join(str(kinds[kind]) for kind in ("green", "refused", "bad", "-", ""))
        days = sorted({row[name][1] for row in cells.values() if name in row})
        lines.append(f"| {name} | {counts} | {' to '.join(dict.fromkeys((days[0], days[-1])))} |")
    return "\n".join(lines) + "\n"


def table(family: str) -> str:
    """The cells of a family of columns."""
    cells = read()
    names = columns(FAMILIES[family], cells)
    return "\n".join(_lines(names, cells)) + "\n"


def _lines(names: Sequence[str], cells: Cells) -> Iterator[str]:
    yield "| feature | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for feature, row in cells.items():
        if any(name in row for name in names):
            yield f"| {feature} | " + " | ".join(row[name][0] if name in row else "" for name in names) + " |"


def _kind(says: str) -> str:
    word = says.partition(" ")[0]
    return word if word in ("", "-", "refused") else "bad" if word.isalpha() else "green"


def main() -> None:
    parser = argparse.ArgumentParser(description="Add reports of `tfdist verify --json` to the cells of the page.")
    parser.add_argument("reports", nargs="+", type=Path, help="files that `tfdist verify --json` has written")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser.add_argument("--day", default=today, help="the day of the runs [default: today]")
    given = parser.parse_args()
    cells = read()
    for report in given.reports:
        cells = with_report(cells, json.loads(report.read_text(encoding="utf-8")), given.day)
    write(cells)
    print(f"{CELLS.relative_to(ROOT)}: written; make goldens puts the tables into the page")


if __name__ == "__main__":
    main()
