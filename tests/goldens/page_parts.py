"""Parts of pages that repeat what the code or another page says, between two marks: `make goldens` writes them anew.

A part begins at `<!-- made by make goldens: NAME -->` and ends at `<!-- end -->`; what stands around it is written by
hand.
"""

import ast
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import griffe

from ecosystem import __main__ as ecosystem
from ecosystem.results import FILE, Results, tables
from ecosystem.rows import ROWS_OF_THE_TABLE
from tests.goldens import matrix_tables
from tests.goldens.public_names import ROOT, package
from tfdist import variables
from tfdist.monitor import faults

_PART = re.compile(r"(<!-- made by make goldens: (.*?) -->\n\n).*?(\n<!-- end -->\n)", re.DOTALL)
# recipes with the same training, which the overview compares
_MEASURED = ("digits", "mirrored", "multi_worker_mirrored", "ring_all_reduce", "parameter_server")


def filled(page: str) -> str:
    """Return the text of a page with every part as it must be now."""
    return _PART.sub(lambda part: part[1] + PARTS[part[2]]() + part[3], page)


def kinds_of_faults() -> str:
    return _table(("kind", "what happens"), [(f"`{kind}`", what) for kind, what in faults.KINDS.items()])


def places_of_faults() -> str:
    return _table(("place", "when it is reached"), [(f"`{place}`", when) for place, when in faults.POINTS.items()])


def arguments_of_backups() -> str:
    """The arguments of the callback, with their defaults and what its docstring says of them."""
    made = package()["callbacks.backup_and_restore.BackupAndRestore"]
    assert isinstance(made, griffe.Class)
    assert made.docstring is not None
    sections = made.docstring.parse("google")
    (told,) = (section.value for section in sections if section.kind is griffe.DocstringSectionKind.parameters)
    says = {one.name: " ".join(one.description.replace("``", "`").split()) for one in told}
    rows = [
        (f"`{one.name}`", "" if one.default is None else f"`{one.default}`".replace("'", '"'), says[one.name])
        for one in made.parameters
        if one.name != "self"
    ]
    return _table(("argument", "default", ""), rows)


def measured_recipes() -> str:
    """The medians that the cards of the recipes have."""
    rows = []
    for name in _MEASURED:
        card = (ROOT / "strategies" / name / "README.md").read_text(encoding="utf-8")
        memory = next((row[2] for row in _cells(card) if row[0].startswith("memory per process")), "")
        for what, rate, accuracy, *more in _rows_below(card, "examples per second"):
            if name == "digits" or what != "one device":
                link = f"[{name}]({name}/README.md#measured), {what}"
                rows.append((link, rate.partition(" (")[0], accuracy, more[0] if more else memory))
    return _table(("", "examples per second", "test accuracy", "memory per process"), rows)


def rooms() -> str:
    """Every package and single module below `tfdist`, with the first line of its docstring."""
    top = ROOT / "tfdist"
    files = [*top.glob("*.py"), *top.rglob("*/__init__.py")]
    rows = []
    for file in sorted(files, key=lambda one: str(one.parent if one.name == "__init__.py" else one.with_suffix(""))):
        name = str((file.parent if file.name == "__init__.py" else file.with_suffix("")).relative_to(top))
        if name not in (".", "__init__", "__main__"):
            says = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            rows.append((f"`{name}`", says.partition("\n\n")[0].replace("\n", " ").replace("``", "`")))
    return _table(("room", "what it holds"), rows)


def ecosystem_tables() -> str:
    summaries = {row.name: row.summary for row in ROWS_OF_THE_TABLE.values()}
    return tables(Results(FILE), summaries, ecosystem.GROUPS)


def variables_set_by(*sides: str) -> str:
    rows = [(f"`{one.name}`", one.help) for one in variables.ALL if one.set_by in sides]
    return _table(("variable", "what it is"), rows)


def _cells(page: str) -> list[tuple[str, ...]]:
    lines = (line for line in page.splitlines() if line.startswith("|"))
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def _rows_below(page: str, column: str) -> list[tuple[str, ...]]:
    """The rows of the table that has this column."""
    (table,) = re.findall(rf"^\|[^\n]* {column} \|.*?\n(?=\n|\Z)", page, re.MULTILINE | re.DOTALL)
    return _cells(table)[2:]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
    return "".join(f"{line}\n" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "kinds of faults": kinds_of_faults,
    "places of faults": places_of_faults,
    "arguments of BackupAndRestore": arguments_of_backups,
    "measured recipes": measured_recipes,
    "rooms": rooms,
    "models of the ecosystem": ecosystem_tables,
    "cells of each column": matrix_tables.overview,
    **{f"cells of {family}": functools.partial(matrix_tables.table, family) for family in matrix_tables.FAMILIES},
    "variables of users": lambda: variables_set_by("user", "user or run"),
    "variables of workers": lambda: variables_set_by("run", "user or run"),
    "variables of tfdist": lambda: variables_set_by("tfdist"),
}
PAGES: tuple[Path, ...] = (
    ROOT / "docs" / "fault-tolerance.md",
    ROOT / "docs" / "fault-tolerance-faults.md",
    ROOT / "docs" / "design" / "rooms.md",
    ROOT / "docs" / "ecosystem.md",
    ROOT / "docs" / "matrix.md",
    ROOT / "docs" / "run.md",
    ROOT / "docs" / "variables.md",
    ROOT / "strategies" / "README.md",
)
