"""The location of the recipes and the documentation, in the wheel or in a clone.

Example:
    >>> (root() / "strategies" / "mirrored" / "train.py").is_file()
    True
"""

import re
from pathlib import Path

from tfdist.errors import MissingDependencyError

_PACKAGE = Path(__file__).parent
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def root() -> Path:
    """Return the folder with ``strategies/``, ``docs/`` and ``README.md``."""
    for place in (_PACKAGE / "share", _PACKAGE.parent):
        if (place / "strategies" / "README.md").is_file():
            return place
    raise MissingDependencyError(
        f"{_PACKAGE} has no recipes and no documentation beside it: it was copied by hand, or packed without them. "
        "Install the wheel of tfdist, or work in a clone of its repository."
    )


def recipes() -> dict[str, Path]:
    """Return the folders of the recipes, by name."""
    return {card.parent.name: card.parent for card in sorted((root() / "strategies").glob("*/README.md"))}


def pages() -> dict[str, Path]:
    """Return the pages of documentation, by name."""
    found = {path.stem: path for path in sorted((root() / "docs").glob("*.md")) if path.stem != "cli"}
    return {"readme": root() / "README.md", **found, "design": root() / "docs" / "design" / "index.md"}


def title(page: Path) -> str:
    """Return the heading of a page."""
    found = _TITLE.search(page.read_text(encoding="utf-8"))
    return found[1] if found else page.stem
