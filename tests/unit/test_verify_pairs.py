"""Every two choices meet in some row, in few rows, always the same ones; what does not go together has a reason."""

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.verify import covering, pairs
from tfdist.verify.covering import Excluded

FACTORS = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(
    lambda sizes: {f"f{place}": [f"v{value}" for value in range(size)] for place, size in enumerate(sizes)}
)


def met(rows: Sequence[Mapping[str, str]]) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for row in rows for pair in itertools.combinations(row.items(), 2)}


@given(FACTORS)
def test_every_pair_is_there_in_whole_rows_and_the_same_every_time(factors: dict[str, list[str]]) -> None:
    rows = covering.rows(factors)
    assert met(rows) == {frozenset(pair) for pair in covering.pairs(factors)}
    assert all(list(row) == list(factors) for row in rows)
    assert rows == covering.rows(factors)
    sizes = sorted(map(len, factors.values()))
    assert sizes[-1] * sizes[-2] <= len(rows) <= len(covering.pairs(factors))


def test_rows_are_few() -> None:
    assert len(covering.rows({f"f{place}": "abcde" for place in range(6)})) <= 50  # of 15,625


@given(FACTORS, st.data())
def test_an_excluded_pair_is_in_no_row_and_all_others_are(factors: dict[str, list[str]], data: st.DataObject) -> None:
    factors = {name: [*values, "other"] for name, values in factors.items()}  # with which every pair can be completed
    every = [pair for pair in covering.pairs(factors) if not any(value == "other" for _, value in pair)]
    barred = [Excluded(*pair, "why not") for pair in data.draw(st.lists(st.sampled_from(every), unique=True))]
    without = {frozenset((entry.one, entry.other)) for entry in barred}
    assert met(covering.rows(factors, barred)) == {frozenset(pair) for pair in covering.pairs(factors)} - without


def test_what_cannot_be_is_said() -> None:
    factors = {"a": ["1", "2"], "b": ["1"], "c": ["1", "2"]}
    with refused(ConfigError, name="excluded", received="a=1 with c=1"):
        covering.rows(factors, [Excluded(("a", "1"), ("b", "1"), "why not")])
    with refused(ConfigError, name="excluded", received=("a", "3")):
        covering.rows(factors, [Excluded(("a", "3"), ("b", "1"), "why not")])


def test_the_rows_of_the_command_cover_every_pair_that_is_not_excluded() -> None:
    wanted = {frozenset(pair) for pair in covering.pairs(pairs.FACTORS)}
    barred = {frozenset((entry.one, entry.other)) for entry in pairs.EXCLUDED}
    assert all(entry.reason for entry in pairs.EXCLUDED)
    assert met(pairs.ROWS) == wanted - barred


def test_every_row_has_a_name_that_tells_it_and_is_no_row_of_the_matrix() -> None:
    from tfdist.verify.feature import features, registered

    found = pairs.features()
    assert len(found) == len(pairs.ROWS)
    for row in pairs.ROWS:
        assert registered("-".join(row.values())) is found["-".join(row.values())]
    assert not found.keys() & features().keys()
    assert {entry.group for entry in found.values()} == {"pairs"}
