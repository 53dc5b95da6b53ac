"""The texts of `--help`: one screen, in lines of a terminal, with examples that can be typed."""

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from tests.goldens.command_help import COLUMNS, commands, shown
from tests.refusals import absent
from tfdist import resources
from tfdist.cli.common.command import Command, Group
from tfdist.cli.main import main

MOST_LINES = {COLUMNS: 45, 78: 50}  # by what click takes of 100 and of 80 columns
# options that click gives no command: of the script, of Docker, of another subcommand
OF_OTHERS = {"--epochs"}


with click.Context(main) as _context:
    EVERY = dict(commands(main, _context))
ALL = {path: one for path, one in EVERY.items() if not isinstance(one, click.Group)}
GROUPS = {path: one for path, one in EVERY.items() if isinstance(one, click.Group)}
SHORT = {path: command for path, command in ALL.items() if isinstance(command, Command)}


@pytest.mark.parametrize("columns", MOST_LINES)
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_on_a_screen(path: tuple[str, ...], columns: int) -> None:
    lines = shown(path, columns).splitlines()
    assert len(lines) <= MOST_LINES[columns], f"{len(lines)} lines: move what is more than a summary into docs/"
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("path", SHORT, ids=" ".join)
def test_examples_can_be_typed(path: tuple[str, ...]) -> None:
    command = SHORT[path]
    own = [line for line in command.examples if line.startswith(" ".join(["tfdist", *path]))]
    assert own, "no example of the command itself"
    assert len(command.examples) >= 3 or len(command.params) < 2
    options = set(OF_OTHERS).union(*(parameter.opts for parameter in command.params))
    for line in own:
        ours = line.partition(" -- ")[0]  # what stands behind it is another command
        words = [word.partition("=")[0] for word in shlex.split(ours) if re.match("--?[a-z]", word)]
        assert [word for word in words if word not in options] == [], line
    told = shown(path, COLUMNS)
    for line, what in command.examples.items():
        assert re.search(rf"^  {re.escape(line)} *{re.escape(what)}$", told, re.MULTILINE), f"too long: {line} {what}"


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_groups_have_examples(path: tuple[str, ...]) -> None:
    group, told = GROUPS[path], shown(path, COLUMNS)
    assert isinstance(group, Group)
    own = [line.split()[1 + len(path)] for line in group.examples if line.startswith(" ".join(["tfdist", *path]))]
    assert own, "no example of the group itself"
    with click.Context(group) as context:
        known = [word for word in own if word in group.list_commands(context)]
    assert known or getattr(group, "default", None), own
    assert all(line in told for line in group.examples)


def test_numbers_are_called_numbers_and_flags_that_exclude_each_other_are_refused() -> None:
    done = CliRunner().invoke(main, ["data", "split", "a", "b", "--dirichlet", "x"])
    assert (done.exit_code, "'x' is not a valid number." in done.output) == (2, True)
    done = CliRunner().invoke(main, ["data", "write", "a.csv", "b", "--keep", "--append"])
    assert (done.exit_code, absent(done.output, "--append", "--keep")) == (2, [])


def test_the_pages_that_help_names_are_there() -> None:
    of_groups = {one.page for one in GROUPS.values() if isinstance(one, Group) and one.page is not None}
    named = of_groups | {command.page for command in SHORT.values() if command.page is not None}
    assert {"run", "data", "benchmarks"} <= named <= resources.pages().keys()


def test_the_page_of_run_has_what_its_help_leaves_out() -> None:
    page = resources.pages()["run"].read_text(encoding="utf-8")
    run = ALL["run",]
    for option in (one for one in run.params if isinstance(one, click.Option)):
        assert any(f"`{name}" in page or f" {name} " in page for name in option.opts) or option.name == "help", option
    for strategy in ("multi-worker", "parameter-server"):
        options = ["--strategy", strategy, "-n", "2", "--max-restarts", "1"]
        done = CliRunner().invoke(main, ["run", "--dry-run", *options, __file__], env={"TF_CPP_MIN_LOG_LEVEL": None})
        assert done.exit_code == 0, done.output
        variables = set(re.findall(r"^export (\w+)=", done.output, re.MULTILINE))
        assert "TF_CONFIG" in variables
        assert [name for name in variables if f"`{name}`" not in page] == []


def test_the_help_of_all_options_has_each_once() -> None:
    run = ALL["run",]
    done = CliRunner().invoke(main, ["run", "--help-all"], terminal_width=COLUMNS)
    assert done.exit_code == 0, done.output
    told = done.output.partition("\nExamples:")[0]
    for option in (one for one in run.params if isinstance(one, click.Option)):
        found = re.findall(rf"^  (?:-\w, )?{re.escape(option.opts[-1])}(?![\w-])", told, re.MULTILINE)
        assert len(found) == 1, option.opts
    assert "--help-all" in shown(("run",), COLUMNS)


def test_every_option_is_shown_once() -> None:
    """Flags that exclude each other share a name, and groups take options by theirs."""
    for path, command in SHORT.items():
        told = shown(path, COLUMNS).partition("\nExamples:")[0]
        for option in (one for one in command.params if isinstance(one, click.Option) and not one.hidden):
            found = re.findall(rf"^  (?:-\w, )?{re.escape(option.opts[-1])}(?![\w-])", told, re.MULTILINE)
            assert len(found) == 1, (path, option.opts)
