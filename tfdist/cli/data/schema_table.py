"""The schema of examples as a table for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

_MOST_NAMES = 6


def schema_table(schema: Mapping[str, Mapping[str, Any]], label: str | None) -> Table:
    """Return a table with a row per feature."""
    table = Table("feature", "dtype", "shape", "stored as", "", box=None)
    for name, feature in schema.items():
        shape = str(tuple("any" if dim is None else dim for dim in feature["shape"])).replace("'", "")
        notes = escape(", ".join(_notes(feature, is_label=name == label)))
        table.add_row(escape(name), feature["dtype"], shape, feature["encoding"], notes)
    return table


def _notes(feature: Mapping[str, Any], *, is_label: bool) -> list[str]:
    found = ["label"] if is_label else []
    if feature.get("is_image"):
        found.append("picture")
    if unit := feature.get("unit"):
        found.append(unit)
    if names := feature.get("names"):
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        found.append(f"{len(names)} classes: {shown}")
    return found


def readable(number: float) -> str:
    """Return bytes for people.

    Example:
        >>> readable(999), readable(1_234_567)
        ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
