"""The words of the field, where a reader looks: names, messages, comments, pages. docs/glossary.md has the others."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("tfdist", "strategies", "docs", "notebooks", "docker", "README.md", "CONTRIBUTING.md")
SUFFIXES = (".py", ".md", ".ipynb", ".toml", ".yml", ".h", ".cc")

# what is not written: what is, instead
WORDS = {
    r"zygote": "fork server",
    r"nursery": "worker factory",
    r"\bpulse\b": "step clock",
    r"\bcrew\b": "scheduler",
    r"\bkeeper\b": "session",
    r"page of memory|progress page": "status table",
    r"\brows_matter\b": "keep_duplicate_indices",
    r"\bfrom_first\b": "broadcast",
    r"\btravelling\b": "cast_for_wire",
    r"goes? on behind (step|the|%d|\d)": "resumes after",
    r"is not the machine": "the failure is deterministic",
    r"start %d follows|start \d+ follows": "restarting (1 of 5)",
}


@cache
def text() -> dict[str, str]:
    """The text of every file, by its path."""
    paths = [
        path for place in PLACES for path in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    ]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in SUFFIXES and path.name != "glossary.md"
    }


@pytest.mark.parametrize("word", WORDS)
def test_the_field_s_word_is_used(word: str) -> None:
    found = [
        f"{path}: {match.group()!r}; say {WORDS[word]!r}"
        for path, content in text().items()
        for match in re.finditer(word, content, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_every_word_of_the_glossary_is_used() -> None:
    rows = re.findall(
        r"^\| ([a-z][^|]*?) \|", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    words = [word for row in rows for word in row.split(", ") if word != "word"]
    assert len(words) > 20
    everything = "\n".join(content.replace("_", " ") for content in text().values()).lower()
    assert [word for word in words if word not in everything] == []
