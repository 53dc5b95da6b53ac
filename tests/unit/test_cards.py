"""The cards of the recipes are complete, and the overview leads to all of them."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.cluster import strategy_table

RECIPES = Path(__file__).parents[2] / "strategies"
OVERVIEW = (RECIPES / "README.md").read_text(encoding="utf-8")
WITH_ANY_STRATEGY = ("compression", "large_batch")  # its bytes and memory are those of the strategy
CARDS = sorted(RECIPES.glob("*/README.md"))


def section(text: str, title: str) -> str:
    """Return the text below a heading of the second level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[str]:
    """The rows of the tables in a text, without heads and rules."""
    lines = text.splitlines()
    rules = {number for number, line in enumerate(lines) if re.fullmatch(r"\|(-+\|)+", line)}
    heads = {number - 1 for number in rules}
    return [line for number, line in enumerate(lines) if line.startswith("|") and number not in rules | heads]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.parent.name)
def test_a_card_is_complete(card: Path) -> None:
    text = card.read_text(encoding="utf-8")
    assert "```\n" in text.partition("\n## ")[0], "it begins with the commands"
    for title in ("When to use it", "When not", "Cost", "Failure", "Source", "Measured"):
        assert section(text, title).strip(), f"nothing stands below {title!r}"
    assert "keras.callbacks.BackupAndRestore" not in text, "a kill costs that one its backup"
    cost = section(text, "Cost")
    assert rows(cost), "the cost is a table"
    if card.parent.name not in WITH_ANY_STRATEGY:
        assert "bytes" in cost
        assert "memory" in cost
    measured = section(text, "Measured")
    assert rows(measured), "what was measured is a table"
    unwrapped = " ".join(measured.split())
    for what in (r"\d+ cores", r"Python 3\.\d+", r"TensorFlow 2\.\d+", r"\d{1,2} [A-Z][a-z]+ 20\d\d"):
        assert re.search(what, unwrapped), f"what was measured does not say {what}: hardware, versions and date"


def test_the_overview_leads_to_every_card_and_names_every_strategy() -> None:
    choice = section(OVERVIEW, "Which one")
    for card in CARDS:
        assert f"({card.parent.name}/README.md)" in choice, f"strategies/README.md does not lead to {card.parent.name}"
    for name in strategy_table.names():
        assert f"`{name}`" in section(OVERVIEW, "What it costs")
        assert f"--strategy {name} " in choice


def test_the_gallery_shows_every_recipe_as_it_was_measured() -> None:
    docs = RECIPES.parent / "docs"
    gallery = runpy.run_path(str(docs / "draw_gallery.py"))
    data = json.loads((docs / "gallery.json").read_text(encoding="utf-8"))
    shown = {name: one for recipes in data["groups"].values() for name, one in recipes.items()}
    assert set(shown) == {card.parent.name for card in CARDS}
    assert gallery["page"](data) == (docs / "gallery.md").read_text(encoding="utf-8")
    for name, one in shown.items():
        picture = gallery["picture_of"](name)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 60_000
        card = (RECIPES / name / "README.md").read_text(encoding="utf-8").replace(",", "")
        for figure in one["bars"].values():
            assert str(figure) in card, f"the card of {name} does not give {figure}"


def test_processes_of_a_recipe_number_words_alike() -> None:
    program = "from described_functions import *; print(vocabulary([one for one, _ in functions(['logging'])]))"
    folder = RECIPES / "two_towers"
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{folder}:{RECIPES.parent}"},
            capture_output=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
