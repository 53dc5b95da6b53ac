"""A covering array of strength two: few rows in which every two choices meet. A pure function.

Most faults that no single feature shows come from two that meet (D. R. Kuhn, D. R. Wallace and A. M. Gallo, "Software
fault interactions and implications for software testing", 2004).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.errors import ConfigError

Choice = tuple[str, str]  # what is chosen, and its value
Row = dict[str, str]


@dataclass(frozen=True)
class Excluded:
    """Two choices that do not go together, such as ``("loop", "run_eagerly")`` with a choice of another factor."""

    one: Choice
    other: Choice
    reason: str


def rows(factors: Mapping[str, Sequence[str]], excluded: Iterable[Excluded] = ()) -> list[Row]:
    """Return rows in which every two values of different factors occur together, unless they are excluded.

    Each row begins with the first missing pair. The other factors get, in turn, the value that adds most missing pairs.
    """
    barred = _barred(excluded, {(factor, value) for factor, values in factors.items() for value in values})
    missing = {pair: None for pair in pairs(factors) if frozenset(pair) not in barred}  # a set with an order
    made: list[Row] = []
    while missing:
        first = next(iter(missing))
        row = _filled(dict(first), factors, missing, barred)
        if row is None:
            words = " with ".join("=".join(choice) for choice in first)
            raise ConfigError(
                f"no row can have {words}, because of all that is excluded. Exclude that pair too.",
                name="excluded",
                received=words,
            )
        for pair in _pairs_in(row, factors):
            missing.pop(pair, None)
        made.append({factor: row[factor] for factor in factors})
    return made


def pairs(factors: Mapping[str, Sequence[str]]) -> list[tuple[Choice, Choice]]:
    return [
        ((one, a), (other, b))
        for one, other in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[one], factors[other])
    ]


def _barred(excluded: Iterable[Excluded], choices: set[Choice]) -> set[frozenset[Choice]]:
    barred = set()
    for entry in excluded:
        unknown = [choice for choice in (entry.one, entry.other) if choice not in choices]
        if unknown:
            raise ConfigError(
                f"{unknown[0]} is excluded together with another choice, and is none.",
                name="excluded",
                received=unknown[0],
            )
        barred.add(frozenset((entry.one, entry.other)))
    return barred


def _filled(
    row: Row,
    factors: Mapping[str, Sequence[str]],
    missing: Mapping[tuple[Choice, Choice], None],
    barred: set[frozenset[Choice]],
) -> Row | None:
    """Return a row with a value for every factor; None if the exclusions leave none."""
    left = [factor for factor in factors if factor not in row]
    if not left:
        return row
    factor = left[0]

    def gain(value: str) -> int:
        return sum(pair in missing for pair in _pairs_in({**row, factor: value}, factors))

    allowed = [v for v in factors[factor] if not any(frozenset(((factor, v), one)) in barred for one in row.items())]
    for value in sorted(allowed, key=gain, reverse=True):  # stable: of equals the first
        found = _filled({**row, factor: value}, factors, missing, barred)
        if found is not None:
            return found
    return None


def _pairs_in(row: Row, factors: Mapping[str, Sequence[str]]) -> list[tuple[Choice, Choice]]:
    chosen = [(factor, row[factor]) for factor in factors if factor in row]
    return list(itertools.combinations(chosen, 2))
