"""The package around the code: what its pages promise exists, and its numbers agree with each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tfdist
from tests.refusals import absent
from tfdist.cli.main import COMMANDS, main
from tfdist.cluster import strategy_table

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(page for top in ("docs", "docker") for page in (ROOT / top).glob("*.md"))])
DESIGN = sorted((ROOT / "docs" / "design").rglob("*.md"))
PAGES += [*DESIGN, *sorted((ROOT / "strategies").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))


def code_of(page: Path) -> str:
    """The blocks and the spans of a page that show commands; blocks in a named language (Python, JSON) do not."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fenced.findall(page.read_text()) if not language]
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", fenced.sub("", page.read_text())))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_a_page_exist(page: Path) -> None:
    code = code_of(page)
    for name in re.findall(r"\btfdist ([a-z][\w-]*)", code):
        assert name in COMMANDS, f"`tfdist {name}` is not a subcommand"
    for name in re.findall(r"\bmake (?:PYTHON=\S+ )?([a-z][\w-]*)", code):
        assert name in targets(), f"`make {name}` is not a target"


def test_modules_that_pages_name_need_no_import_of_their_own() -> None:
    names = ["engines.ray", "parallel.partition", "planner.schedules", "testing.pool"]
    assert all(f"tfdist.{name}" in "".join(page.read_text() for page in PAGES) for name in names)
    code = f"import operator, tfdist; print([operator.attrgetter(name)(tfdist).__name__ for name in {names}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str([f"tfdist.{name}" for name in names]), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_on_a_page_exist(page: Path) -> None:
    with click.Context(main) as context:
        for line in code_of(page).splitlines():
            found = re.match(r"(?:python -m )?tfdist (\w+)((?: [^#]*)?)", line)
            if not found:
                continue
            command = main.get_command(context, found[1])
            if isinstance(command, click.Group) and found[2].strip():  # the next word is its subcommand
                first = (found[2].split() or [""])[0]
                default = getattr(command, "default", None) or ""
                command = command.get_command(context, first) or command.get_command(context, default)
                assert command is not None, f"{line!r} names no subcommand of `tfdist {found[1]}`"
            known = {"--help"}.union(*(parameter.opts for parameter in command.params)) if command else set()
            given = re.sub(r'"[^"]*"', "VALUE", found[2])  # options in a value are another command's
            ours = re.split(r"\S+\.py\b| -- ", given)[0]  # what follows a script, or stands behind --, is another's
            for option in re.findall(r"(?<!\S)(--?[a-z][\w-]*)", ours):
                assert option in known, f"`tfdist {found[1]} {option}` is not an option"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_pages_of_the_design_can_be_read_at_a_sitting() -> None:
    for page in DESIGN:
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 200, page.name
        fenced = False
        for line in lines:
            fenced ^= line.startswith("```")
            wide = line if not (fenced or line.startswith(("|", "- ["))) else ""
            assert len(wide) <= 100, f"{page.name}: {line}"


def test_every_subcommand_and_strategy_is_on_its_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for name in COMMANDS:
        assert f"tfdist {name}" in page
    for name in strategy_table.names():
        assert f"`{name}`" in README


def test_the_makefile_has_its_targets_and_names_them() -> None:
    wanted = {
        "demo",
        "test",
        "test-io",
        "test-fast",
        "test-unpatched",
        "lint",
        "verify",
        "horovod",
        "peers",
        "compat",
        "ecosystem",
        "docs",
        "package",
        "docker-lock",
        "docker-test",
        "clean",
    }
    assert wanted <= targets()
    for name in wanted:
        assert re.search(rf"^#   make {name} ", MAKEFILE, re.MULTILINE), f"`make help` does not tell of {name}"


def test_the_newest_change_is_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == tfdist.__version__
    headings = re.findall(r"^### (.+)$", changes.split("\n## ")[1], re.MULTILINE)
    assert headings == ["New features", "Breaking", "Deprecations", "Bug fixes"]


def test_python_versions_agree() -> None:
    """setup.py, the Makefile, ruff and mypy speak of the same range."""
    requires = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (ROOT / "setup.py").read_text())
    assert requires
    first, last = int(requires[1]), int(requires[2]) - 1
    assert f"(3, {first}) <= sys.version_info[:2] <= (3, {last})" in MAKEFILE
    assert re.search(r"^CANDIDATES := (.+)$", MAKEFILE, re.MULTILINE)
    for minor in range(first, last + 1):
        assert f"python3.{minor} " in MAKEFILE
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["ruff"]["target-version"] == f"py3{first}"
    assert tools["mypy"]["python_version"] == f"3.{first}"


def make_demo(venv: Path, *variables: str) -> "subprocess.CompletedProcess[str]":
    command = ["make", f"VENV={venv}", *variables, "demo"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        ("echo 'Python 3.9.1'; exit 1", ["Python 3.9.1", "Python 3.11, 3.12 or 3.13"]),
        ('case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac', ["venv and ensurepip"]),
    ],
)
def test_make_says_what_is_wrong_with_a_python(tmp_path: Path, script: str, facts: list[str]) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    done = make_demo(tmp_path / "venv", f"PYTHON={python}")
    assert done.returncode != 0
    assert not absent(done.stderr, *facts, "make PYTHON=/path/to/python3.11 demo")
    assert not (tmp_path / "venv" / ".installed").exists()


def test_make_names_the_pythons_that_it_looked_for(tmp_path: Path) -> None:
    done = make_demo(tmp_path / "venv", "CANDIDATES=nopython", "PYTHON=")
    assert done.returncode != 0
    assert not absent(done.stderr, "Python 3.11, 3.12 or 3.13", "nopython")


def test_an_install_that_fails_leaves_no_stamp(tmp_path: Path) -> None:
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *--version*) exit 0;; *) exit 7;; esac\n')
    python.chmod(0o755)
    done = make_demo(tmp_path / "venv")
    assert done.returncode != 0
    assert not (tmp_path / "venv" / ".installed").exists()


def test_no_line_of_an_overview_is_cut() -> None:
    with click.Context(main) as context:
        groups = {name: main.get_command(context, name) for name in COMMANDS}
    for name in ("", *(name for name, command in groups.items() if isinstance(command, click.Group))):
        overview = CliRunner().invoke(main, [*name.split(), "--help"], env={"COLUMNS": "100"}).output
        assert "..." not in overview.partition("\nCommands:\n")[2], overview
