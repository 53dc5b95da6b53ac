"""The README: each command in it is run by a test, and what it repeats from other pages is what they say."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tfdist.cli.main import main
from tfdist.verify.feature import features

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MATRIX = (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests" / "integration"

# The recipes are run by the commands of the README with their own script in the place of train.py.
RECIPES = "test_recipes.py"
# command -> the test that runs it, and what in that test shows it; scripts of the tests stand for train.py
RUN = {
    "make demo": (RECIPES, "command=demo()"),
    "tfdist verify": ("test_verify.py", 'forking.start("tfdist", "verify"'),
    "python train.py": (RECIPES, 'script="digits", command=[sys.executable]'),
    "tfdist run --strategy multi-worker -n 2 train.py": (RECIPES, "command=demo()"),
    "tfdist run --strategy ring -n 2 train.py": (RECIPES, '"--strategy", "ring", "-n", "2"]'),
    "tfdist run --strategy mirrored --replicas-per-worker 2 train.py": (
        RECIPES,
        '"--strategy", "mirrored", "--replicas-per-worker", "2"]',
    ),
    "tfdist run --strategy parameter-server -n 2 train.py": (RECIPES, '"--strategy", "parameter-server", "-n", "2"'),
    "tfdist data write photos data": ("test_data_example.py", "data write photos data"),
    "tfdist data info data/train": ("test_data_example.py", "data info data/train"),
    "tfdist data verify data/train": ("test_data_example.py", "before, behind, code = blocks()"),
    "tfdist run --strategy ring -n 2 --max-restarts 3 train.py": (
        "test_run_recovers.py",
        'parametrize("strategy", KILLS)\ndef test_killed_at_steps_and_at_every_point',
    ),
    "tfdist run --strategy ring -n 2 --max-restarts 3 --standby train.py": (
        "test_run_standby.py",
        'options = ["--strategy", "ring", "-n", "2", "--max-restarts", "2"]',
    ),
    "tfdist run --strategy ring -n 2 --max-restarts 3 --min-workers 1 --max-workers 3 train.py": (
        "test_run_recovers.py",
        'parametrize("strategy", ["multi-worker", "ring"])\ndef test_every_example_counts_once',
    ),
    "tfdist resize JOB 3": ("cases/counting.py", '"tfdist", "resize"'),
    "tfdist chaos -- tfdist run --strategy ring -n 2 train.py": (
        "test_chaos.py",
        '"--", "tfdist", "run", "--strategy", "ring", "-n", "2", *training',
    ),
    "tfdist doctor": ("test_doctor.py", '"-m", "tfdist", "doctor"'),
    "tfdist tune batch train.py": ("test_tune.py", '"tfdist", "tune", "batch"'),
}
# what needs the network (`make` installs the same into .venv), Docker or a GPU (`make docker-test` builds and runs the
# image `cpu` with other programs); no test runs these
NOT_RUN = {
    "python -m pip install .",
    "python -m pip install '.[formats,s3]'",
    "docker build -f docker/Dockerfile --target gpu -t tfdist:gpu .",
    "docker run --gpus all --shm-size=1g tfdist:gpu tfdist run --strategy mirrored strategies/mirrored/train.py",
}


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands() -> list[str]:
    """The commands of the README, without comments."""
    return [re.sub(r"\s+#.*", "", line).strip() for block in blocks("") for line in block.splitlines()]


def test_every_command_is_run_by_a_test() -> None:
    assert len(commands()) >= 12
    unknown = [command for command in commands() if command not in RUN and command not in NOT_RUN]
    assert not unknown, f"write a test that runs it, and name that here: {unknown}"


@pytest.mark.parametrize("command", RUN)
def test_the_test_that_runs_a_command_is_there(command: str) -> None:
    file, evidence = RUN[command]
    assert evidence in (TESTS / file).read_text(encoding="utf-8"), f"{file} does not run `{command}` any more"


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
    (table,) = re.findall(r"^\| extra \|.*?\n\n", README, re.MULTILINE | re.DOTALL)
    extras = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (given,) = (one.value for one in ast.walk(extras) if isinstance(one, ast.keyword) and one.arg == "extras_require")
    assert isinstance(given, ast.Dict)
    assert {key.value for key in given.keys if isinstance(key, ast.Constant)} == set(
        re.findall(r"`([a-z\d]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:] if line))
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


def test_the_program_that_trains_on_pictures_is_that_of_the_page() -> None:
    """tests/integration/test_data_example.py runs the page's."""
    section = README.partition("\n## Data\n")[2].partition("\n## ")[0]
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n.*?^```$", section, re.MULTILINE | re.DOTALL)
    assert program in page


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
    assert len(shown) >= 10
    assert {"mirrored-2", "mirrored-2 (plain)", "ring-2"} <= shown["partial_batch"].keys()
    for feature, row in shown.items():
        for column, cell in row.items():
            assert printed[feature][column] == cell, f"{feature} under {column} is {printed[feature][column]} there"
    assert printed.keys() == features().keys()
    rows = sum("mirrored-2" in row for row in printed.values())
    assert f"{len(shown)} of {rows} rows" in README
    of_tfdist = [cell for row in printed.values() for column, cell in row.items() if not column.endswith("(plain)")]
    assert not any(re.match("WRONG|ERROR|HANG|CRASH", cell) for cell in of_tfdist)


def test_the_picture_is_there() -> None:
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
        assert (ROOT / picture).stat().st_size < 100_000
