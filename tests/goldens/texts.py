"""The golden texts by the names of their files, and what makes each of them from the code as it is now."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.goldens.command_help import command_help
from tests.goldens.file_formats import file_formats
from tests.goldens.messages import messages
from tests.goldens.public_names import public_names
from tests.goldens.variables_table import variables_table

FOLDER = Path(__file__).parent
TEXTS: Mapping[str, Callable[[], str]] = {
    "public_names.txt": public_names,
    "command_help.txt": command_help,
    "variables_table.txt": variables_table,
    "file_formats.txt": file_formats,
    "messages.txt": messages,
}
MOST_LINES = 80  # of a difference that is shown


def changes(name: str) -> str:
    """Return how a text differs from what the code says now; empty where they are equal.

    Args:
        name: of the text.
    """
    kept = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    lines = list(difflib.unified_diff(kept, TEXTS[name]().splitlines(), "promised", "now", lineterm="", n=1))
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} lines more"]
    return "\n".join(lines)
