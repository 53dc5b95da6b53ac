"""The reductions of a function, as names and as a digest."""

from itertools import pairwise

import pytest

from tfdist.collectives.traced import Signature, first_difference


def names(*entries: str) -> list[str]:
    signature = Signature()
    return [signature.add(entry) for entry in entries]


def test_a_name_follows_from_everything_before_it() -> None:
    assert names("a", "b", "c") == names("a", "b", "c")
    assert names("a", "b")[:1] == names("a", "c")[:1]
    assert names("a", "b", "x")[1:] != names("a", "c", "x")[1:]
    assert names("ab", "c")[-1] != names("a", "bc")[-1]


def test_no_name_repeats_however_often_the_same_is_reduced() -> None:
    many = names(*["sum float32 (3,)"] * 1000)
    assert len(set(many)) == 1000
    assert {len(name) for name in many} == {16}


def test_the_digest_is_that_of_the_entries() -> None:
    one, two = Signature(), Signature()
    assert one.digest == two.digest
    one.add("a")
    assert one.digest != two.digest
    two.add("a")
    assert one.digest == two.digest
    assert all(-(2**63) <= s.digest < 2**63 for s in (one, two))


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        (["a", "b"], ["a", "c"], (1, "b", "c")),
        (["a"], ["a", "b"], (1, "nothing more", "b")),
        (["a", "b"], [], (0, "a", "nothing more")),
        (["a"], ["a"], (1, "nothing more", "nothing more")),
    ],
)
def test_the_first_difference(mine: list[str], theirs: list[str], found: tuple[int, str, str]) -> None:
    assert first_difference(mine, theirs) == found


def test_entries_are_kept_in_order() -> None:
    signature = Signature()
    for entry in "abc":
        signature.add(entry)
    assert all(one < two for one, two in pairwise(signature.entries))
