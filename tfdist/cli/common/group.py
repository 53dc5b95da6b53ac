"""Groups of commands: what was probably meant by one that there is not, and imports when one is called."""

import importlib.util
from collections.abc import Mapping
from typing import Any

import click

from tfdist.validation import nearest


class Group(click.Group):
    """A group of commands, some of which may be known by name alone until they are called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, or refuse it with the name that is nearest."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}.{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that imports a subcommand when it is called; its overview imports none.

    Example:
        >>> group = LazyGroup("data", package="tfdist.cli.data", table={"write": "Write examples."}, modules="data_{}")
        >>> group.list_commands(click.Context(group))
        ['write']
    """

    def __init__(self, *args: Any, package: str, table: Mapping[str, str], modules: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._package = package
        self._table = table
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None when there is none."""
        if cmd_name not in self._table:
            return None
        name = cmd_name.replace("-", "_")
        module = f"{self._package}.{name}"
        if importlib.util.find_spec(module) is None:
            module = f"{self._package}.{self._modules.format(name)}"
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command), f"{module}.command is no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, so that it costs no import."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._table.items()))
