"""Requests for many ranges: all bytes come back, none is too large, and no fewer would do."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.storage.ranges import Plan, Range, coalesce

CONTENT = {name: bytes((17 * i + len(name)) % 256 for i in range(400)) for name in ("a", "bb", "ccc")}
RANGES = st.lists(st.tuples(st.sampled_from(sorted(CONTENT)), st.integers(0, 300), st.integers(0, 100)), max_size=30)


def answers(plan: Plan) -> list[bytes]:
    return [CONTENT[name][start : start + length] for name, start, length in plan.requests]


@given(RANGES, st.integers(0, 60), st.integers(1, 120))
def test_all_bytes_come_back(ranges: list[Range], gap: int, largest: int) -> None:
    plan = coalesce(ranges, gap=gap, largest=largest)
    assert plan.results(answers(plan)) == [CONTENT[name][start : start + length] for name, start, length in ranges]


@given(RANGES, st.integers(0, 60), st.integers(1, 120))
def test_requests_are_bounded_sorted_and_do_not_overlap(ranges: list[Range], gap: int, largest: int) -> None:
    requests = coalesce(ranges, gap=gap, largest=largest).requests
    assert list(requests) == sorted(requests)
    assert all(1 <= length <= largest for _, _, length in requests)
    for (name, start, length), (next_name, next_start, _) in itertools.pairwise(requests):
        assert name != next_name or start + length <= next_start


@given(RANGES, st.integers(0, 60), st.integers(1, 120))
def test_nothing_is_fetched_for_nothing(ranges: list[Range], gap: int, largest: int) -> None:
    wanted = {(name, i) for name, start, length in ranges for i in range(start, start + length)}
    for name, start, length in coalesce(ranges, gap=gap, largest=largest).requests:
        inside = [(name, i) in wanted for i in range(start, start + length)]
        assert inside[0]
        assert inside[-1]
        longest_gap = max(len(part) for part in "".join("x" if i else "." for i in inside).split("x"))
        assert longest_gap <= gap


@given(RANGES, st.integers(0, 12), st.integers(1, 40))
def test_no_fewer_requests_would_do(ranges: list[Range], gap: int, largest: int) -> None:
    """Against the shortest path over all ways to cover the bytes of a file from the left."""
    requests = coalesce(ranges, gap=gap, largest=largest).requests
    for file in CONTENT:
        wanted = sorted({i for name, start, length in ranges if name == file for i in range(start, start + length)})
        fewest = [0] * (len(wanted) + 1)
        for i in reversed(range(len(wanted))):
            ends, last = [], i
            while last < len(wanted) and wanted[last] - wanted[i] < largest:
                if last > i and wanted[last] - wanted[last - 1] - 1 > gap:
                    break
                ends.append(last + 1)
                last += 1
            fewest[i] = 1 + min(fewest[end] for end in ends)
        assert sum(name == file for name, _, _ in requests) == fewest[0]


@pytest.mark.parametrize(
    ("ranges", "gap", "largest", "requests"),
    [
        ([], 0, 1, []),
        ([("f", 5, 0)], 0, 1, []),
        ([("f", 0, 4), ("f", 4, 4)], 0, 100, [("f", 0, 8)]),
        ([("f", 0, 4), ("f", 5, 4)], 0, 100, [("f", 0, 4), ("f", 5, 4)]),
        ([("f", 0, 4), ("f", 5, 4)], 1, 100, [("f", 0, 9)]),
        ([("f", 0, 4), ("g", 4, 4)], 9, 100, [("f", 0, 4), ("g", 4, 4)]),
        ([("f", 0, 10)], 0, 4, [("f", 0, 4), ("f", 4, 4), ("f", 8, 2)]),
        ([("f", 0, 3), ("f", 6, 3)], 9, 5, [("f", 0, 3), ("f", 6, 3)]),
        ([("f", 1 << 60, 2), ("f", 0, 1)], 9, 5, [("f", 0, 1), ("f", 1 << 60, 2)]),
    ],
)
def test_simple_cases(ranges: list[Range], gap: int, largest: int, requests: list[Range]) -> None:
    assert list(coalesce(ranges, gap=gap, largest=largest).requests) == requests
