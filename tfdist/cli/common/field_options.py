"""Options of a command made from the fields of a dataclass, so that each is described once."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import click

from tfdist.options import Option, flags_of, options_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


def field_options(
    kind: type, overrides: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a command an option for each field that `tfdist.options.option` made."""

    def decorated(function: _Function) -> _Function:
        for one, known in reversed(options_of(kind)):
            given = {**_arguments(one.default, known), **overrides.get(one.name, {})}
            function = click.option(*flags_of(one.name, known), one.name, **given)(function)
        return function

    return decorated


def _arguments(default: Any, known: Option) -> dict[str, Any]:
    """Return what click has to know of an option; ranges are checked by the dataclass, with its own messages."""
    given: dict[str, Any] = {"help": known.help or None, "envvar": known.variable, "hidden": known.is_hidden}
    if known.kind is bool:
        return {**given, "is_flag": True}
    kind = click.Choice(list(known.choices)) if known.choices else known.kind
    is_shown = not known.may_be_unset and default != ()
    shown = {"default": default, "show_default": not known.is_hidden} if is_shown else {}
    return {**given, "type": kind, "metavar": known.metavar, "multiple": known.is_several, **shown}
