"""Results of the rows: a file that each cell is added to, so that a run resumes where another ended, and a table."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfdist.verify.matrix_report import Cell

#: what the page shows; `make goldens` puts its table into docs/ecosystem.md
FILE = Path(__file__).with_name("results.json")
_LONGEST_REASON = 400
# Keras writes which layer was called above what an error within it says, and that in bold.
_OF_A_LAYER, _COLOURS = "Exception encountered when calling ", re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"'[^']+'")


@dataclass(frozen=True)
class Result:
    """One cell, with the versions and the day of its run."""

    cell: Cell
    versions: Mapping[str, str]
    date: str

    def is_of(self, versions: Mapping[str, str]) -> bool:
        """Whether it is right, and these versions would run again."""
        return not self.cell.is_bad and dict(self.versions) == dict(versions)


class Results:
    """The newest result of each row and column, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[tuple[str, str], Result] = {}
        if path.exists():
            for entry in json.loads(path.read_text(encoding="utf-8")):
                self._put(Result(Cell(**entry["cell"]), entry["versions"], entry["date"]))

    def __iter__(self) -> Any:
        return iter(self._kept.values())

    def get(self, row: str, column: str) -> Result | None:
        return self._kept.get((row, column))

    def add(self, result: Result) -> None:
        """Keep a result, also if this process is killed right after."""
        self._put(result)
        entries = [{**asdict(kept), "versions": dict(kept.versions)} for _, kept in sorted(self._kept.items())]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        temporary.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self._path)

    def _put(self, result: Result) -> None:
        self._kept[result.cell.feature, result.cell.column] = result


def tables(results: Results, rows: Mapping[str, str], groups: Iterable[Sequence[str]]) -> str:
    """Return a table for each group of columns, the reasons of refusals, and the versions with their days.

    Args:
        results: what was found.
        rows: name -> what it is, in order.
        groups: names of columns.
    """
    reasons: dict[str, int] = {}
    parts = []
    for columns in groups:
        lines = ["| model | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for name in rows:
            cells = [_text(results.get(name, column), reasons) for column in columns]
            if any(cells):
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    if reasons:
        parts.append("\n".join(f"{number}. {reason}" for reason, number in reasons.items()))
    return "\n\n".join([*parts, _versions(results)]) + "\n"


def _text(result: Result | None, reasons: dict[str, int]) -> str:
    if result is None:
        return ""
    if result.cell.status != "refused":
        return result.cell.text
    told = _NAMED.sub("...", reason(result.cell))  # a refusal of other layers is the same
    return f"refused ({reasons.setdefault(told, len(reasons) + 1)})"


def reason(cell: Cell) -> str:
    """The first line of what the refusal says, without which worker says it, and within the call of which layer."""
    lines = [line for line in _COLOURS.sub("", cell.detail).splitlines() if line.strip()]
    who, _, said = lines[0].partition(": ")
    lines[0] = said if who.startswith("worker ") else lines[0]
    line = lines[1] if lines[0].startswith(_OF_A_LAYER) and len(lines) > 1 else lines[0]
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def _versions(results: Results) -> str:
    """Return the versions of packages, with the days of their runs."""
    days: dict[str, list[str]] = {}
    for result in results:
        text = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        days.setdefault(text, []).append(result.date)
    return "\n".join(
        f"{len(dates)} cells, {' to '.join(dict.fromkeys((min(dates), max(dates))))}: {text}."
        for text, dates in days.items()
    )
