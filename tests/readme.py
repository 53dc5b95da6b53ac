"""The commands that the README and the tour show, and the tests that run them, marked `readme("the command")`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INTEGRATION = ROOT / "tests" / "integration"
# what needs the network (`make` installs the same into .venv), Docker or a GPU (`make docker-test` builds and runs the
# image `cpu` with other programs); no test runs these
NOT_RUN = {
    "make test",  # which runs this
    "python -m pip install .",
    "python -m pip install '.[formats,s3]'",
    "docker build -f docker/Dockerfile --target gpu -t tfdist:gpu .",
    "docker run --gpus all --shm-size=1g tfdist:gpu tfdist run --strategy mirrored strategies/mirrored/train.py",
}


@dataclass(frozen=True)
class Marks:
    """The marks of the tests that were collected: command -> test; and whether these are all tests."""

    tests: dict[str, str]
    complete: bool


MARKS = pytest.StashKey[Marks]()


def text() -> str:
    """The README and the tour, which shows the rest."""
    return "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/tour.md"))


def fenced(page: str, language: str) -> list[str]:
    """The blocks of code in the text of a page that are in a language; "" for commands."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def blocks(language: str) -> list[str]:
    """The blocks of code of the README and the tour in a language; "" for commands."""
    return fenced(text(), language)


def commands() -> list[str]:
    """The commands of the README, without comments."""
    return [re.sub(r"\s+#.*", "", line).strip() for block in blocks("") for line in block.splitlines()]


def problems(shown: Iterable[str], marked: Mapping[str, str], *, complete: bool) -> list[str]:
    """Return the problems of the marks.

    Args:
        shown: the commands of the README.
        marked: command -> a test that is marked with it.
        complete: whether these are all tests there are, so that every command has one.
    """
    shown = set(shown)
    gone = [f"{test} is marked with `{command}`" for command, test in marked.items() if command not in shown]
    found = [f"{one}, which the README does not show" for one in gone]
    if complete:
        found += [f"no test is marked with `{one}`, which the README shows" for one in sorted(shown - marked.keys())]
    return found
