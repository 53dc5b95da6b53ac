"""Options as fields of a dataclass: default, help, range and flag are given once, for Python and for the command line.

`option` makes a field, `check` validates the fields of an instance, and `tfdist.cli.common.option_parts` makes options
of a command from them.

Example:
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Wait:
    ...     seconds: float = option(10.0, "Until it is ended.", metavar="S", minimum=0)
    ...     def __post_init__(self) -> None:
    ...         check(self)
    >>> Wait(seconds=-1)
    Traceback (most recent call last):
    ...
    tfdist.errors.ConfigError: seconds (--seconds) is -1; it must be a finite number of at least 0.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.validation import boolean, integer, number, one_of, text

_KEY = "option"


@dataclass(frozen=True, kw_only=True)
class Option:
    """The description of an option, besides its field's name and default.

    Attributes:
        help: the description, in one line.
        kind: the type: bool (a flag), int, float, str, or Path, which is checked when it is opened.
        flags: the flags on the command line; by default the field's name with hyphens.
        metavar: the placeholder for the value in the help.
        minimum: the lower bound of a number, included.
        maximum: the upper bound of a number, included.
        above: the lower bound of a number, excluded.
        choices: the allowed texts; empty: any.
        variable: the environment variable that the command line reads if the option is not given.
        is_several: whether it can be given several times; the value is a tuple.
        may_be_unset: whether None is a value. The command line then has no default.
        is_hidden: whether the help leaves it out; the help of all options has its line.
    """

    help: str
    kind: type
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    variable: str | None = None
    is_several: bool = False
    may_be_unset: bool = False
    is_hidden: bool = False


def option(
    default: Any,
    help: str = "",  # noqa: A002 - the word of every library of options
    *,
    kind: type | None = None,
    flags: Sequence[str] = (),
    **known: Any,
) -> Any:
    """Return a field of a dataclass that is an option; one without help is hidden."""
    is_several = isinstance(default, tuple)
    found = Option(
        help=help,
        kind=kind or (str if is_several else type(default)),
        flags=tuple(flags),
        is_several=is_several,
        **{"may_be_unset": default is None, "is_hidden": not help, **known},
    )
    return field(default=default, metadata={_KEY: found})


def options_of(kind: type) -> list[tuple["dataclasses.Field[Any]", Option]]:
    """Return the fields of a dataclass that are options, each with its `Option`."""
    return [(one, one.metadata[_KEY]) for one in dataclasses.fields(kind) if _KEY in one.metadata]


def flags_of(name: str, known: Option) -> tuple[str, ...]:
    """Return the flags of an option.

    Example:
        >>> flags_of("grace_seconds", Option(help="", kind=float))
        ('--grace-seconds',)
    """
    return known.flags or (f"--{name.replace('_', '-')}",)


def check(instance: Any) -> None:
    for one, known in options_of(type(instance)):
        value = getattr(instance, one.name)
        if value is None and one.default is None:
            continue
        for each in value if known.is_several else (value,):
            _check_one(f"{one.name} ({flags_of(one.name, known)[0]})", each, known)


def _check_one(name: str, value: Any, known: Option) -> None:
    if known.choices:
        one_of(name, value, known.choices)
    elif known.kind is bool:
        boolean(name.partition(" ")[0], value)
    elif known.kind is int:
        integer(name, value, minimum=_whole(known.minimum), maximum=_whole(known.maximum))
    elif known.kind is float:
        number(name, value, minimum=known.minimum, maximum=known.maximum, above=known.above)
    elif known.kind is str:
        text(name.partition(" ")[0], value)


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)
