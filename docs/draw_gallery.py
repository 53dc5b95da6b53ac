"""Draw the pictures of docs/gallery.md, and write the page, from what was measured: docs/gallery.json.

python docs/draw_gallery.py            # all pictures and the page
python docs/draw_gallery.py digits     # one picture, and the page
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA, PAGE, PICTURES = HERE / "gallery.json", HERE / "gallery.md", HERE / "images"
_FIRST, _OTHERS = "#8a8f98", "#1f5f9e"


def picture_of(recipe: str) -> Path:
    return PICTURES / f"gallery-{recipe}.png"


def page(data: dict[str, Any]) -> str:
    """The page, with a table for each group of recipes."""
    lines = [*data["head"]]
    for group, recipes in data["groups"].items():
        lines += ["", f"## {group}", "", "| | recipe | start it |", "|---|---|---|"]
        for name, one in recipes.items():
            picture = f"![{one['title']}: {one['figure']}](images/{picture_of(name).name})"
            commands = "<br>".join(f"`{command}`" for command in one["commands"])
            lines.append(
                f"| {picture} | [{one['title']}](../strategies/{name}/README.md): {one['text']} | {commands} |"
            )
    return "\n".join([*lines, "", *data["foot"], ""])


def draw(name: str, one: dict[str, Any]) -> None:
    """Draw bars; the first one, what the others are compared with, is grey."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    labels, values = list(one["bars"]), list(one["bars"].values())
    figure = Figure(figsize=(4, 0.7 + 0.36 * len(labels)), dpi=80, layout=ConstrainedLayoutEngine())
    axes = figure.add_subplot()
    bars = axes.barh(labels[::-1], values[::-1], color=[*[_OTHERS] * (len(labels) - 1), _FIRST])
    axes.bar_label(bars, [f"{value:,}" for value in values[::-1]], padding=3, fontsize=9)
    axes.set_xlim(0, max(values) * 1.2)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(one["figure"], loc="left", fontsize=10)
    figure.savefig(picture_of(name), metadata={"Software": None})


def main() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    for recipes in data["groups"].values():
        for name, one in recipes.items():
            if name in sys.argv[1:] or not sys.argv[1:]:
                draw(name, one)
    PAGE.write_text(page(data), encoding="utf-8")


if __name__ == "__main__":
    main()
