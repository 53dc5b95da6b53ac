"""The harness of the benchmarks: options, arms that are measured in turns, tables, and a report with its machine.

A benchmark is a `Suite`: a frozen dataclass whose fields are its options, and whose `run` measures its arms in turns
and returns a `Report`. The command line is made of both: `tfdist.cli.bench.suite_command`.
"""

import abc
import dataclasses
import json
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tfdist import options


@dataclass(frozen=True)
class Quartiles:
    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.lower:.2f}-{self.upper:.2f}]"


def quartiles(values: Sequence[float]) -> Quartiles:
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(median, lower, upper)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Quartiles:
    return quartiles([a / b for a, b in zip(numerators, denominators, strict=True)])


@dataclass(frozen=True)
class Spread:
    """A mean, and 1.96 standard deviations over all rounds, as Horovod's synthetic benchmarks print them."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        digits = 1 if self.mean >= 10 else 2
        return f"{self.mean:.{digits}f} +- {self.deviation:.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), 1.96 * statistics.pstdev(values))


#: the names in `tfdist.bench.workers.workloads.MODELS`, which loads Keras
MODELS = ("perceptron", "convolutional", "small", "resnet50")

#: Receives what is measured next, as a line for the terminal.
Told = Callable[[str], None]

_Arm = TypeVar("_Arm", bound=Hashable)
_Measured = TypeVar("_Measured")


def untold(text: str) -> None:
    """Ignore the text about the next measurement."""


def option(default: Any, text: str, **known: Any) -> Any:
    """Return a field of a `Suite`, which is an option of its command; a number is at least 1."""
    example = default[0] if isinstance(default, tuple) and default else default
    kind = str if example in (None, ()) else type(example)
    return options.option(default, text, **{"kind": kind, "minimum": 1, **known})


@dataclass(frozen=True, kw_only=True)
class Suite(abc.ABC):
    """A benchmark with its options: the fields that `option` makes, which are checked."""

    def __post_init__(self) -> None:
        options.check(self)

    @abc.abstractmethod
    def run(self, told: Told = untold) -> "Report":
        """Measure all arms in turns and return the report."""


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Report(abc.ABC):
    setup: Suite  # the benchmark with its options
    machine: Mapping[str, str]  # processor, cores, versions, time and load; see `tfdist.planner.machine.observed`

    @abc.abstractmethod
    def derived(self) -> Mapping[str, Any]:
        """Return ratios and quartiles, by their names in the JSON."""

    @abc.abstractmethod
    def shown(self) -> Iterator[Table | str]:
        """Yield the tables for a terminal, and the sentences between them."""

    def draw(self, path: Path) -> None:
        """Draw the report as a PNG, if the benchmark has a picture."""
        raise NotImplementedError(f"{type(self).__name__} has no picture for {path}")

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), **self.derived()}, indent=2, default=_plain)

    def ran_on(self) -> str:
        about = self.machine
        return (
            f"{about['processor']}, {about['cores']} cores; TensorFlow {about['tensorflow']}, Horovod "
            f"{about['horovod']}, Python {about['python']}; {about['time']}; load {about['load average']} before, "
            f"{about['load average at the end']} after."
        )


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def turn(number: int, count: int) -> str:
    """Return the name of a round; round 0 warms up."""
    return f"round {number} of {count}" if number else "warming up"


def rotated(arms: Sequence[_Arm], number: int) -> list[_Arm]:
    """Return the arms in their order, beginning with another one each round.

    Example:
        >>> rotated("abc", 1), rotated("abc", 5)
        (['b', 'c', 'a'], ['c', 'a', 'b'])
    """
    first = number % len(arms)
    return [*arms[first:], *arms[:first]]


def rounds(
    arms: Sequence[_Arm], count: int, *, first: int = 0, order: Callable[[Sequence[_Arm], int], list[_Arm]] = rotated
) -> Iterator[tuple[int, list[_Arm]]]:
    """Yield the number of each round, from 1 on, and the order in which it measures the arms."""
    for index in range(count):
        yield index + 1, order(arms, index + first)


def in_turns(
    arms: Sequence[_Arm],
    measure: Callable[[_Arm, int], _Measured],
    *,
    count: int,
    told: Told = untold,
    subject: str = "",
    first: int = 0,
) -> dict[_Arm, list[_Measured]]:
    """Measure every arm once a round, each round in another order; return the results of each arm's rounds.

    Example:
        >>> in_turns("ab", lambda arm, number: f"{arm}{number}", count=2)
        {'a': ['a1', 'a2'], 'b': ['b1', 'b2']}
    """
    found: dict[_Arm, list[_Measured]] = {arm: [] for arm in arms}
    for index, order in rounds(arms, count, first=first):
        for arm in order:
            told(f"{subject}{arm}, {turn(index, count)}")
            found[arm].append(measure(arm, index))
    return found
