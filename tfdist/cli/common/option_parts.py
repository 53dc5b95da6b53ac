"""Parts that options of several commands share: options from fields, output files, and completion."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from tfdist.cluster import strategy_table
from tfdist.options import Option, flags_of, options_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


def field_options(
    kind: type, overrides: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> Callable[[_Function], _Function]:
    """Return a decorator that adds an option for each field of `tfdist.options.option`."""

    def decorated(function: _Function) -> _Function:
        for one, known in reversed(options_of(kind)):
            given = {**_arguments(one.default, known), **overrides.get(one.name, {})}
            function = click.option(*flags_of(one.name, known), one.name, **given)(function)
        return function

    return decorated


def _arguments(default: Any, known: Option) -> dict[str, Any]:
    """Return the arguments of `click.option`, without ranges, which the dataclass checks with its own messages."""
    given: dict[str, Any] = {"help": known.help or None, "envvar": known.variable, "hidden": known.is_hidden}
    if known.kind is bool:
        return {**given, "is_flag": True}
    kind = click.Choice(list(known.choices)) if known.choices else known.kind
    is_shown = not known.may_be_unset and default != ()
    shown = {"default": default, "show_default": not known.is_hidden} if is_shown else {}
    return {**given, "type": kind, "metavar": known.metavar, "multiple": known.is_several, **shown}


class OutputFile(click.Path):
    """The type of an option that names an output file; a file that cannot be written is refused at the start.

    With ``appends``, a file that exists is not replaced, so its folder need not be writable.
    """

    def __init__(self, *, allow_dash: bool = False, path_type: type[Any] = str, appends: bool = False) -> None:
        self._appends = appends
        super().__init__(dir_okay=False, writable=True, allow_dash=allow_dash, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        folder = Path(str(found)).parent
        if self.allow_dash and str(found) == "-":
            return found
        begun = f"{str(found)!r}: the folder {str(folder)!r}"
        if not folder.is_dir():
            self.fail(f"{begun} does not exist. Create it, or name another.", param, ctx)
        if not (self._appends and os.path.exists(found)) and not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{begun} is not writable. Name another.", param, ctx)
        return found


json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=OutputFile(allow_dash=True),
    help="Write the report as JSON; - for standard output.",
)
plot_option = click.option("--plot", metavar="FILE", type=OutputFile(path_type=Path), help="Draw it, as a PNG.")


def write_json(text: str, path: str | None) -> None:
    """Print a report if the path of ``--json`` is ``-``, or write it to the file if one is named."""
    if path == "-":
        click.echo(text)
    elif path:
        Path(path).write_text(text + "\n", encoding="utf-8")


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def completes(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the shell completion of an option or argument that takes one of these names."""
    return lambda context, parameter, incomplete: beginning(names(), incomplete)


def _columns() -> list[str]:
    from tfdist.verify.column import COLUMNS

    return [*strategy_table.names(), *(one.name for one in COLUMNS)]


def _features() -> list[str]:
    from tfdist.verify.feature import features

    found = features().values()
    return [*(one.group for one in found), *(one.name for one in found)]


complete_strategies, complete_columns, complete_features = map(completes, (strategy_table.names, _columns, _features))
