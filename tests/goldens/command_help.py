"""The `--help` texts of all commands and groups, in lines of 98 columns on any terminal, in any environment."""

import os
from collections.abc import Iterator
from unittest import mock

import click
from click.testing import CliRunner

from tfdist.cli.main import main

COLUMNS = 98
_OURS = ("TFDIST_", "TF_", "COLUMNS")


def commands(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command and each group under a group by its words, the groups before what they have."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, context, *path, name)


def shown(path: tuple[str, ...], columns: int) -> str:
    """Return the help text of a command.

    Args:
        path: the words of the command.
        columns: of the terminal, without those that click leaves free.
    """
    done = CliRunner().invoke(main, [*path, "--help"], terminal_width=columns)
    assert done.exit_code == 0, done.output
    return done.output


def command_help() -> str:
    """Return the golden text: each command as it is typed, and below it its help."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    with mock.patch.dict(os.environ, kept, clear=True), click.Context(main) as context:
        paths = [(), *(path for path, _ in commands(main, context))]
        texts = [f"$ {' '.join(['tfdist', *path, '--help'])}\n{shown(path, COLUMNS)}" for path in paths]
    return "\n".join(texts)
