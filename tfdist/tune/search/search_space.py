"""Hyper-parameters: their ranges, the drawing of values, and the parsing of `lr=log:1e-4:1e-1`.

Example:
    >>> space = parse_space(["lr=log:1e-4:1e-1", "units=32,64,128", "depth=int:1:4", "norm=bool"])
    >>> sorted(drawn(space, seed=1, trial=0))
    ['depth', 'lr', 'norm', 'units']
    >>> parse_space(["lr=log:0:1"])
    Traceback (most recent call last):
    ...
    tfdist.errors.ConfigError: the range of 'lr' begins at 0.0; a logarithmic range begins above 0.
"""

import bisect
import dataclasses
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tfdist.errors import ConfigError
from tfdist.validation import nearest, shown

Value = bool | int | float | str
Values = Mapping[str, Value]
_KINDS = {"linear": (False, False), "log": (False, True), "int": (True, False), "int-log": (True, True)}
_NAME = re.compile(r"[\w./-]+")
_EXAMPLES = "lr=log:1e-4:1e-1, drop=linear:0:0.5, depth=int:1:4, units=32,64,128 or norm=bool"
_PERTURBED = (0.8, 1.2)
_MOST_POINTS = 1_000_000  # of a range with a step, and of a grid


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from `low` to `high`, both included; `step` is a difference, or a ratio if the range is logarithmic."""

    low: float
    high: float
    step: float | None = None
    is_integer: bool = False
    is_log: bool = False

    def _check(self, name: str) -> None:
        what, bounds = f"the range of {name!r}", (self.low, self.high)
        if not all(map(math.isfinite, bounds)) or self.low > self.high:
            raise ConfigError(
                f"{what} is {self.low} to {self.high}; it must go from a number to one that is not smaller.", name=name
            )
        if self.is_log and self.low <= 0:
            raise ConfigError(f"{what} begins at {self.low}; a logarithmic range begins above 0.", name=name)
        least = 1 if self.is_log else 0
        if self.step is not None and not (math.isfinite(self.step) and self.step > least):
            raise ConfigError(f"the step of {name!r} is {self.step}; it must be above {least}.", name=name)
        if self.is_integer and any(one != int(one) for one in bounds):
            raise ConfigError(f"{what} is {self.low} to {self.high}; an integer range has whole bounds.", name=name)
        is_range = self.is_integer and not self.is_log and self.step is not None and self.step == int(self.step)
        if self.step is not None and not is_range and (count := self._count(self.step)) > _MOST_POINTS:
            raise ConfigError(
                f"{what} has {count:.3g} values with the step {self.step}; it must have at most {_MOST_POINTS:,}. "
                "Give a larger step, or none.",
                name=name,
            )

    def _count(self, step: float) -> float:
        """Return roughly the number of values that have this step between them."""
        return math.log(self.high / self.low) / math.log(step) if self.is_log else (self.high - self.low) / step

    def _typed(self, value: float) -> Value:
        value = min(max(value, self.low), self.high)
        return round(value) if self.is_integer else float(value)

    def points(self) -> Sequence[Any] | None:
        """Return all values of the range, in rising order; None if they are not countable."""
        if self.step is None and not (self.is_integer and not self.is_log):
            return None
        step, found, count = self.step or 1, [], 0
        if self.is_integer and not self.is_log and step == int(step):
            return range(int(self.low), int(self.high) + 1, int(step))  # a seed has billions of values
        last = self.high * (1 + 1e-12) if self.is_log else self.high + 1e-6 * step  # which rounding may pass
        while (value := self.low * step**count if self.is_log else self.low + step * count) <= last:
            found.append(self._typed(value))
            count += 1
        return list(dict.fromkeys(found))

    def draw(self, source: random.Random) -> Value:
        if (points := self.points()) is not None:
            return source.choice(points)
        if self.is_log:
            return self._typed(math.exp(source.uniform(math.log(self.low), math.log(self.high))))
        return self._typed(source.uniform(self.low, self.high))

    def perturb(self, value: Value, source: random.Random) -> Value:
        """Return a value near another one: a fifth more or less, and a different number if there is one."""
        before, factor = float(value), source.choice(_PERTURBED)
        moved = before * factor if before else (self.high - self.low) * (factor - min(_PERTURBED)) / 4
        if (points := self.points()) is not None:
            others = points[bisect.bisect_right(points, before) :] if factor > 1 else points[: _place(points, before)]
            place = _place(others, moved)
            near: Sequence[Value] = others[max(place - 1, 0) : place + 1]
            return min(near, key=lambda one: abs(float(one) - moved), default=value)
        return self._typed(moved)

    def holds(self, value: Any) -> bool:
        return not isinstance(value, bool | str) and self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A choice of one value from a list."""

    values: tuple[Value, ...]

    def _check(self, name: str) -> None:
        if not self.values or len(set(map(repr, self.values))) < len(self.values):
            raise ConfigError(f"{name!r} has the values {list(self.values)}; there must be some, each once.", name=name)
        for one in self.values:
            if not isinstance(one, bool | int | float | str) or one != one:
                raise ConfigError(
                    f"{name!r} has the value {shown(one)}; it must be a number, a text or a bool.", name=name
                )

    def points(self) -> list[Value]:
        return list(self.values)

    def draw(self, source: random.Random) -> Value:
        return source.choice(self.values)

    def perturb(self, value: Value, source: random.Random) -> Value:
        """Return a neighbour of a value in the list."""
        place = self.values.index(value) + source.choice((-1, 1))
        return self.values[place] if 0 <= place < len(self.values) else value

    def holds(self, value: Any) -> bool:
        return value in self.values


Parameter = Range | Choice
Space = Mapping[str, Parameter]


def _place(points: Sequence[Any], value: float) -> int:
    """Return the number of points below a value."""
    return bisect.bisect_left(points, value)


def checked(name: str, parameter: Parameter) -> Parameter:
    parameter._check(name)
    return parameter


def parse_space(texts: Iterable[str]) -> dict[str, Parameter]:
    """Return the space that `--space NAME=RANGE` options describe."""
    found: dict[str, Parameter] = {}
    for one in texts:
        name, equals, rest = one.partition("=")
        if not equals or not _NAME.fullmatch(name) or not rest:
            raise ConfigError(
                f"--space is {one!r}; write NAME=RANGE, such as {_EXAMPLES}.", name="--space", received=one
            )
        if name in found:
            raise ConfigError(f"--space has {name!r} twice; give each name one range.", name=name, received=one)
        found[name] = checked(name, _parsed(name, rest))
    return found


def _parsed(name: str, text: str) -> Parameter:
    if text == "bool":
        return Choice(values=(False, True))
    kind, colon, rest = text.partition(":")
    if not colon:
        return Choice(values=tuple(map(_value, text.split(","))))
    if kind not in _KINDS:
        hint = nearest(kind, _KINDS)
        raise ConfigError(
            f"the range of {name!r} is {text!r}; its kind must be one of {', '.join(_KINDS)}, or it is a list of "
            f"values.{hint} Examples: {_EXAMPLES}.",
            name=name,
            received=text,
        )
    words = rest.split(":")
    try:
        low, high, *more = map(float, words)
        if len(more) > 1:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"the range of {name!r} is {text!r}; write {kind}:LOW:HIGH or {kind}:LOW:HIGH:STEP, with numbers.",
            name=name,
            received=text,
        ) from None
    is_integer, is_log = _KINDS[kind]
    return Range(low=low, high=high, step=more[0] if more else None, is_integer=is_integer, is_log=is_log)


def _value(text: str) -> Value:
    if text in ("true", "false", "True", "False"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def from_python(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the space that a program describes with ranges as texts, sequences of values, or parameters.

    Example:
        >>> from_python({"units": [32, 64], "lr": "log:1e-4:1e-1"})["units"]
        Choice(values=(32, 64))
    """
    found: dict[str, Parameter] = {}
    for name, one in space.items():
        if isinstance(one, str):
            found |= parse_space([f"{name}={one}"])
        elif isinstance(one, Range | Choice):
            found[name] = checked(name, one)
        elif isinstance(one, list | tuple):
            found[name] = checked(name, Choice(values=tuple(one)))
        else:
            raise ConfigError(
                f"space[{name!r}] is {shown(one)}; it must be a range as a text, or a list of values: {_EXAMPLES}.",
                name=str(name),
                received=one,
            )
    return found


def drawn(space: Space, *, seed: int, trial: int) -> dict[str, Value]:
    """Return the random values of a trial; each depends on seed, trial and name alone."""
    return {name: draw_one(name, one, seed=seed, trial=trial) for name, one in space.items()}


def draw_one(name: str, parameter: Parameter, *, seed: int, trial: int) -> Value:
    return parameter.draw(random.Random(f"{seed}/{trial}/{name}"))


def grid(space: Space) -> list[dict[str, Value]]:
    """Return all combinations of values; the last name varies fastest."""
    columns, count = [], 1
    for name, one in space.items():
        points = one.points()
        if points is None:
            raise ConfigError(
                f"{name!r} has a range without a step, and a grid needs points: write NAME=linear:LOW:HIGH:STEP, or "
                "NAME=log:LOW:HIGH:FACTOR.",
                name=name,
            )
        count *= len(points)
        if count > _MOST_POINTS:
            raise ConfigError(
                f"a grid with {name!r} has {count:,} trials or more; it must have at most {_MOST_POINTS:,}. Give "
                "ranges larger steps, or take --scheduler random.",
                name=name,
            )
        columns.append([(name, value) for value in points])
    return [dict(row) for row in product(*columns)] if columns else []


def to_json(parameter: Parameter) -> dict[str, Any]:
    return dataclasses.asdict(parameter)


def from_json(content: Mapping[str, Any]) -> Parameter:
    if "values" in content:
        return Choice(values=tuple(content["values"]))
    return Range(**content)
