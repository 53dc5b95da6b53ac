"""The README: each command in it is run by a test, and what it repeats from other pages is what they say."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.readme import MARKS, NOT_RUN, blocks, commands, problems, text
from tests.refusals import absent
from tfdist.cli.main import main
from tfdist.verify.feature import features

ROOT = Path(__file__).parents[2]
README = text()
MATRIX = (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")


def test_every_command_is_run_by_a_test(request: pytest.FixtureRequest) -> None:
    """Each has a test that is marked `readme("the command")`.

    All have been collected by `make test` and `make test-fast`; of a part of the tests only the marks are looked at.
    """
    assert len(commands()) >= 12
    marks = request.config.stash[MARKS]
    shown = [command for command in commands() if command not in NOT_RUN]
    assert not problems(shown, marks.tests, complete=marks.complete)


def test_a_command_without_a_test_and_a_test_without_a_command_are_found() -> None:
    shown, marked = ["tfdist doctor", "tfdist verify"], {"tfdist verify": "test_a", "tfdist heal": "test_b"}
    gone, missing = problems(shown, marked, complete=True)
    assert not absent(gone, "test_b", "`tfdist heal`")
    assert not absent(missing, "no test", "`tfdist doctor`")
    assert problems(shown, marked, complete=False) == [gone]
    assert set(commands()) >= NOT_RUN


@pytest.mark.parametrize("command", sorted({one for one in commands() if one.startswith("tfdist run ")}))
def test_run_takes_the_command_as_it_stands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(main, ["run", "--dry-run", *words[1:]])
    assert done.exit_code == 0, done.output
    workers = int(words[words.index("-n") + 1]) if "-n" in words else 1
    assert done.output.count("train.py") >= (1 if "parameter-server" in words else workers)


def test_every_extra_is_named() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| extra \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    extras = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (given,) = (one.value for one in ast.walk(extras) if isinstance(one, ast.keyword) and one.arg == "extras_require")
    assert isinstance(given, ast.Dict)
    assert {key.value for key in given.keys if isinstance(key, ast.Constant)} == set(
        re.findall(r"`([a-z\d-]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:] if line))
    )


def mentioned() -> set[tuple[str, ...]]:
    """The commands that the text names between backticks: `tfdist data info` -> ("data", "info")."""
    spans = re.findall(r"`tfdist ([a-z][^`\n]*)`", README) + [
        one[7:] for one in commands() if one.startswith("tfdist ")
    ]
    found = set()
    for span in spans:
        words = span.split()
        group = main.get_command(click.Context(main), words[0])
        found.add(tuple(words[: 2 if isinstance(group, click.Group) and len(words) > 1 else 1]))
    return found


@pytest.mark.parametrize("words", sorted(mentioned()), ids=" ".join)
def test_a_command_that_is_named_says_what_it_does(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage: ")


def test_code_is_python() -> None:
    assert len(blocks("python")) >= 3  # tests/integration/test_docs_pages.py runs it
    for block in blocks("python"):
        ast.parse(block)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> dict[str, dict[str, str]]:
    """The cells of all tables whose first column is `feature`: feature -> column -> cell."""
    found: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            heads = []
        elif cells(line)[0] == "feature":
            heads = cells(line)
        elif heads and not line.startswith("|-"):
            feature, *others = cells(line)
            found.setdefault(feature, {}).update(zip(heads[1:], others, strict=True))
    return found


def test_the_matrix_is_that_of_the_page() -> None:
    shown, printed = tables(README), tables(MATRIX)
    assert len(shown) >= 5
    assert {"mirrored-2", "mirrored-2 (plain)", "ring-2"} <= shown["partial_batch"].keys()
    for feature, row in shown.items():
        for column, cell in row.items():
            assert printed[feature][column] == cell, f"{feature} under {column} is {printed[feature][column]} there"
    assert printed.keys() == features().keys()
    assert f"{len(shown)} of {len(printed)} rows" in README
    of_tfdist = [cell for row in printed.values() for column, cell in row.items() if not column.endswith("(plain)")]
    assert not any(re.match("WRONG|ERROR|HANG|CRASH", cell) for cell in of_tfdist)


def test_the_readme_can_be_read_to_the_end() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if len(line) > 100 and not line.startswith(("|", "!"))]


def test_the_picture_is_there() -> None:
    for picture in re.findall(r"!\[[^]]*\]\((docs/[^)]+)\)", README):
        assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
        assert (ROOT / picture).stat().st_size < 100_000
