"""Commands whose help fits on a screen, and command groups that import a command when it is called."""

import copy
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfdist.validation import nearest

WIDTH = 100
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH, "show_default": True}
# The settings of commands that start a script: words after the script's name are its arguments.
PASSES_ARGUMENTS = {**SETTINGS, "allow_interspersed_args": False}

_METAVARS = {"integer": "N", "integer range": "N", "float": "X", "float range": "X"}  # click writes INTEGER RANGE
_NAMES = {"integer range": "integer", "float": "number", "float range": "number"}  # and "is not a valid float range"
_ARGUMENTS = f"{__name__}.arguments"
_TELLS_ALL = f"{__name__}.tells_all"


def arguments_of(context: click.Context) -> tuple[str, ...]:
    found: tuple[str, ...] = context.meta[_ARGUMENTS]
    return found


def without_options(words: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return the options of a submitted command, without the options of the submission and their values.

    Example:
        >>> without_options(["--engine", "slurm", "--sbatch", "-N 2", "--dry-run", "--sbatch=-p a"], ["--sbatch"])
        ['--engine', 'slurm']
    """
    left, rest = [], iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in taken:
            if not equals:
                next(rest)
        elif word != "--dry-run":
            left.append(word)
    return left


class Command(click.Command):
    """A command whose help has options in groups, examples, exit codes, and the name of its documentation page.

    With ``tells_all``, ``--help-all`` also shows the options that do not fit on one screen.
    """

    def __init__(
        self,
        *args: Any,
        examples: Mapping[str, str] | None = None,
        page: str | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        tells_all: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **options})
        self.examples = dict(examples or {})
        self.page = page
        self._groups = groups or {}
        self._tells_all = tells_all
        names = [one.name for one in self.params]
        self._exclusive = {name for name in names if names.count(name) > 1}
        if tells_all:
            flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "hidden": True}
            self.params.append(click.Option(["--help-all"], help="Show all options.", callback=_tell_all, **flag))
        for one in self.params:
            if isinstance(one, click.Option) and one.metavar is None and not one.is_flag:
                one.metavar = _METAVARS.get(one.type.name)
            if one.type.name in _NAMES:
                one.type = copy.copy(one.type)  # click.FLOAT is every command's
                one.type.name = _NAMES[one.type.name]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta.setdefault(_ARGUMENTS, tuple(args))
        if not ctx.resilient_parsing:
            self._refuse_exclusive(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_exclusive(self, context: click.Context, args: list[str]) -> None:
        """Refuse two flags that share a name; click would take the last of them."""
        if not self._exclusive:
            return
        given: dict[str | None, set[str]] = {}
        for one in self.make_parser(context).parse_args(list(args))[2]:
            if one.name in self._exclusive:
                given.setdefault(one.name, set()).add(one.opts[0])
        for flags in given.values():
            if len(flags) > 1:
                context.fail(f"{' and '.join(sorted(flags))} exclude each other; give one of them.")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below the headings of their groups; options without a group come last."""
        found: dict[str, list[tuple[str, str]]] = {}  # flags that exclude each other share one name
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                found.setdefault(str(option.name), []).append(record)
        sections = {h: [record for name in names for record in found.pop(name)] for h, names in self._groups.items()}
        last = list(sections)[-1] if sections else "Options"
        sections.setdefault(last, []).extend(record for records in found.values() for record in records)
        if ctx.meta.get(_TELLS_ALL):
            sections["More options"] = _hidden(self.get_params(ctx), ctx)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        more = [self.epilog] if self.epilog else []
        if self.page is not None:
            more.append(f"More: {'--help-all, ' if self._tells_all else ''}tfdist docs {self.page}")
        if more:
            formatter.write_paragraph()
            with formatter.indentation():
                for text in more:
                    formatter.write_text(text)


def _hidden(options: Sequence[click.Parameter], context: click.Context) -> list[tuple[str, str]]:
    """Return help records for the options that a command's help leaves out."""
    shown = [copy.copy(one) for one in options if isinstance(one, click.Option) and one.hidden and one.help]
    for one in shown:
        one.hidden = False
    return [record for one in shown if (record := one.get_help_record(context))]


def _tell_all(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_TELLS_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def write_examples(formatter: click.HelpFormatter, examples: Mapping[str, str]) -> None:
    """Write command lines with their explanations beside them, or below them if the terminal is too narrow."""
    if not examples:
        return
    width = max((len(line) for line, told in examples.items() if told), default=0)
    with formatter.section("Examples"):
        for line, told in examples.items():
            beside = f"  {line:<{width}}  {told}".rstrip()
            fits = len(beside) <= formatter.width or not told
            formatter.write(f"{beside}\n" if fits else f"  {line}\n      {told}\n")


class Group(click.Group):
    """A group with examples and the name of its documentation page, which suggests a name for an unknown command."""

    def __init__(
        self, *args: Any, examples: Mapping[str, str] | None = None, page: str | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.examples = dict(examples or {})
        self.page = page

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        if self.page is not None:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"More: tfdist docs {self.page}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}.{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that imports a subcommand when it is called; the overview imports none.

    If a script or an option is in the place of the subcommand, ``default`` is called, if there is one.
    """

    def __init__(
        self,
        *args: Any,
        package: str,
        table: Mapping[str, str],
        modules: str,
        default: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._package = package
        self._table = table
        self._modules = modules
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.default is not None and args and args[0] not in {*self._table, *ctx.help_option_names}:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        name = cmd_name.replace("-", "_")
        module = f"{self._package}.{name}"
        if importlib.util.find_spec(module) is None:
            module = f"{self._package}.{self._modules.format(name)}"
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command), f"{module}.command is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._table.items()))


def lazy_group(package: str, table: Mapping[str, str], text: str, **options: Any) -> LazyGroup:
    """Return the group of a sub-package, in which the module GROUP_NAME has the command NAME."""
    name = package.rpartition(".")[2]
    return LazyGroup(
        name, package=package, modules=name + "_{}", table=table, help=text, context_settings=SETTINGS, **options
    )
