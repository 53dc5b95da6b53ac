"""A command whose help fits on a screen: usage, what it does, options in groups, examples, and where the rest is."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

WIDTH = 100
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}
# Of commands that start a script: what follows its name is the script's.
PASSES_ARGUMENTS = {**SETTINGS, "allow_interspersed_args": False}

_METAVARS = {"integer": "N", "integer range": "N", "float": "X", "float range": "X"}  # click writes INTEGER RANGE
_ARGUMENTS = f"{__name__}.arguments"


def arguments_of(context: click.Context) -> tuple[str, ...]:
    """Return the arguments that a `Command` was given, as they were."""
    found: tuple[str, ...] = context.meta[_ARGUMENTS]
    return found


def without_options(words: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return options for a command that is submitted, without those that its submission has taken, and their values.

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
    """A command with a short help.

    Example:
        >>> fly = Command("fly", examples={"tfdist fly home": "the shortest way"})
        >>> "tfdist fly home  the shortest way" in fly.get_help(click.Context(fly))
        True
    """

    def __init__(
        self,
        *args: Any,
        examples: Mapping[str, str] | None = None,
        page: str | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **options})
        self.examples = dict(examples or {})
        self.page = page
        self._groups = groups or {}
        for option in self.params:
            if isinstance(option, click.Option) and option.metavar is None and not option.is_flag:
                option.metavar = _METAVARS.get(option.type.name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they were given, for `arguments_of`."""
        ctx.meta.setdefault(_ARGUMENTS, tuple(args))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below the headings of their groups; those of no group end the last one."""
        found: dict[str, list[tuple[str, str]]] = {}  # flags that exclude each other have one name
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                found.setdefault(str(option.name), []).append(record)
        sections = {h: [record for name in names for record in found.pop(name)] for h, names in self._groups.items()}
        last = list(sections)[-1] if sections else "Options"
        sections.setdefault(last, []).extend(record for records in found.values() for record in records)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples, then the epilog (exit codes), then where the rest is."""
        write_examples(formatter, self.examples)
        more = [self.epilog] if self.epilog else []
        if self.page is not None:
            more.append(f"More: tfdist docs {self.page}")
        if more:
            formatter.write_paragraph()
            with formatter.indentation():
                for text in more:
                    formatter.write_text(text)


def write_examples(formatter: click.HelpFormatter, examples: Mapping[str, str]) -> None:
    """Write lines for a shell, and what each does: beside them, below one where the terminal is too narrow."""
    if not examples:
        return
    width = max((len(line) for line, told in examples.items() if told), default=0)
    with formatter.section("Examples"):
        for line, told in examples.items():
            beside = f"  {line:<{width}}  {told}".rstrip()
            fits = len(beside) <= formatter.width or not told
            formatter.write(f"{beside}\n" if fits else f"  {line}\n      {told}\n")
