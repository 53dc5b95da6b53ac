"""Results of a run of the matrix: frozen values, and their texts."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tfdist.verify.column import Column
from tfdist.verify.feature import Feature

Status = Literal["green", "wrong", "error", "hang", "crash", "refused", "left out"]
BAD: tuple[Status, ...] = ("wrong", "error", "hang", "crash")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell: one feature under one column.

    Attributes:
        feature: the name of the feature.
        column: the name of the column.
        baseline: whether this is plain TensorFlow and Keras, without tfdist.
        status: "green", "wrong" (other numbers than one device), "error", "hang", "crash", "refused" (tfdist clearly
            refuses to do this) or "left out" (makes no sense under this column).
        difference: the largest relative difference; None if there is nothing to compare.
        error: the class name of the exception.
        detail: the entry that differs most, or the first lines of the error.
        seconds: the time that the cell took.
    """

    feature: str
    column: str
    baseline: bool = False
    status: Status
    difference: float | None = None
    error: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The text of the cell in a table.

        Example:
            >>> Cell(feature="even", column="mirrored-2", status="wrong", difference=0.0171).text
            'WRONG 1.7e-02'
        """
        words = {
            "green": _number(self.difference),
            "wrong": f"WRONG {_number(self.difference)}",
            "error": f"ERROR {self.error}",
            "hang": "HANG",
            "crash": "CRASH",
            "left out": "-",
        }
        return words.get(self.status, self.status)

    @property
    def is_bad(self) -> bool:
        """Whether the cell is anything but green, rightly refused or left out."""
        return self.status in BAD


def _number(difference: float | None) -> str:
    if difference is None or difference == 0:
        return "0"
    return "differs" if math.isinf(difference) else f"{difference:.0e}" if difference < 1e-5 else f"{difference:.1e}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The cells of a run.

    Attributes:
        features: name -> summary, in the order of rows.
        columns: the names of the columns, in order.
        cells: the cells, in any order.
        versions: the versions of TensorFlow, Keras, tfdist and Python.
        seconds: the time that the run took.
    """

    features: Mapping[str, str]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def has_baseline(self) -> bool:
        """Whether plain TensorFlow and Keras ran beside tfdist."""
        return any(cell.baseline for cell in self.cells)

    @property
    def is_green(self) -> bool:
        """Whether every cell of tfdist is green, rightly refused or left out."""
        return not any(cell.is_bad for cell in self.cells if not cell.baseline)

    @property
    def cells_left(self) -> int:
        """The number of cells that have not run, because the run was ended early."""
        kinds = 2 if self.has_baseline else 1
        return kinds * len(self.features) * len(self.columns) - len(self.cells)

    def cell(self, feature: str, column: str, *, baseline: bool = False) -> Cell | None:
        """Return one cell, or None if it has not run.

        Args:
            feature: the name of the feature.
            column: the name of the column.
            baseline: whether to return the cell of plain TensorFlow and Keras.
        """
        found = (c for c in self.cells if (c.feature, c.column, c.baseline) == (feature, column, baseline))
        return next(found, None)

    def lanes(self) -> tuple[tuple[str, bool], ...]:
        """Return the columns of the table: (name, baseline), plain TensorFlow's before tfdist's."""
        present = {(cell.column, cell.baseline) for cell in self.cells}
        return tuple((c, b) for c in self.columns for b in (True, False) if (c, b) in present)

    def summary(self) -> str:
        """Return one line per kind of cell, with the number of green cells and the others.

        Example:
            >>> cell = Cell(feature="even", column="mirrored-2", status="green", difference=0.0)
            >>> Report(features={"even": ""}, columns=("mirrored-2",), cells=(cell,)).summary()
            'tfdist: 1 of 1 cells green'
        """
        lines = [
            _count("plain Keras and TensorFlow", [c for c in self.cells if c.baseline]),
            _count("tfdist", [c for c in self.cells if not c.baseline]),
            f"not run: {self.cells_left} cells" if self.cells_left else "",
        ]
        return "\n".join(line for line in lines if line)

    def to_json(self) -> str:
        """Return the report as JSON: versions, seconds, features, a list of cells, and the number that did not run."""
        return json.dumps(
            {
                "is_green": self.is_green,
                "seconds": round(self.seconds, 1),
                "versions": dict(self.versions),
                "features": dict(self.features),
                "columns": list(self.columns),
                "cells": [_plain(cell) for cell in self.cells],
                "cells_left": self.cells_left,
            },
            indent=1,
            allow_nan=False,
        )

    def to_markdown(self) -> str:
        """Return the table and the summary in Markdown, for a README."""
        lanes = self.lanes()
        heads = [f"{column} (plain)" if baseline else column for column, baseline in lanes]
        lines = ["| feature | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for name in self.features:
            cells = [self.cell(name, column, baseline=baseline) for column, baseline in lanes]
            lines.append(f"| {name} | " + " | ".join("" if c is None else c.text for c in cells) + " |")
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return "\n".join([*lines, "", *self.summary().splitlines(), *([versions] if versions else [])]) + "\n"


def _plain(cell: Cell) -> dict[str, Any]:
    infinite = cell.difference is not None and math.isinf(cell.difference)
    return asdict(cell) | {"difference": None if infinite else cell.difference, "text": cell.text}


def _count(who: str, cells: Iterable[Cell]) -> str:
    ran = [cell for cell in cells if cell.status != "left out"]
    if not ran:
        return ""
    counts = {status: sum(cell.status == status for cell in ran) for status in ("green", "refused", *BAD)}
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if count and status != "green")
    return f"{who}: {counts['green']} of {len(ran)} cells green" + (f", {others}" if others else "")


def of_cells(features: Iterable[Feature], columns: Iterable[Column], cells: Iterable[Cell], **more: Any) -> Report:
    """Return the report of a run, which may have ended before all of its cells had run."""
    named = {feature.name: feature.summary for feature in features}
    return Report(features=named, columns=tuple(column.name for column in columns), cells=tuple(cells), **more)
