"""`decide`: shares that follow constant speeds, rest in noise, keep within memory, and leave a slow input alone."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.training.balance.share_decisions import DEAD_BAND, LOOK_BACK, Window, apportioned, decide, interval, rows_of

SPEEDS = st.lists(st.floats(1.0, 12.0), min_size=2, max_size=6).map(tuple)


def window(rows: tuple[int, ...], speeds: tuple[float, ...], *, fixed: float = 0.0) -> Window:
    seconds = tuple(fixed + mine / speed for mine, speed in zip(rows, speeds, strict=True))
    return Window(rows, seconds, (0.0,) * len(rows))


def balanced(
    rows: tuple[int, ...], speeds: tuple[float, ...], *, fixed: float = 0.0, most: tuple[int, ...] | None = None
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The changes that twelve windows lead to, and the rows at their end."""
    history, changes = [], []
    for _ in range(12):
        history.append(window(rows, speeds, fixed=fixed))
        wanted = decide(history, rows, max_change=0.2, most_rows=most).rows
        assert sum(wanted) == sum(rows)
        assert min(wanted) >= 1
        moved = sum(abs(new - old) for old, new in zip(rows, wanted, strict=True)) / 2
        assert moved <= max(1, 0.2 * sum(rows)) + len(rows) / 2, "rounding moves less than a row for each worker"
        changes += [wanted] if wanted != rows else []
        rows = wanted
    return changes, rows


@settings(max_examples=200, deadline=None)
@given(speeds=SPEEDS, batch=st.integers(64, 2048))
def test_constant_speeds_need_at_most_five_changes(speeds: tuple[float, ...], batch: int) -> None:
    changes, rows = balanced(rows_of((1,) * len(speeds), batch), speeds)
    assert len(changes) <= 5
    best = apportioned(batch, speeds, (batch,) * len(speeds))
    times = [max(mine / speed for mine, speed in zip(r, speeds, strict=True)) for r in (rows, best)]
    assert times[1] >= (1 - DEAD_BAND) * times[0] - 1e-12


def test_one_of_four_workers_is_four_times_slower() -> None:
    changes, rows = balanced((16, 16, 16, 16), (4.0, 4.0, 1.0, 4.0))
    assert len(changes) <= 2
    assert sorted(rows) == [5, 19, 20, 20]
    assert rows[2] == 5


def test_time_that_does_not_depend_on_rows_settles_too() -> None:
    changes, rows = balanced((64, 64), (4.0, 1.0), fixed=5.0)
    assert len(changes) <= 5
    assert rows[0] > 3 * rows[1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), speeds=SPEEDS)
def test_noise_of_five_percent_moves_nothing_back_and_forth(seed: int, speeds: tuple[float, ...]) -> None:
    draw = random.Random(seed)
    _, rows = balanced(rows_of((1,) * len(speeds), 512), speeds)
    history: list[Window] = []
    changes = []
    for _ in range(30):
        medians = tuple(
            statistics.median(mine / speed * draw.gauss(1.0, 0.05) for _ in range(20))
            for mine, speed in zip(rows, speeds, strict=True)
        )
        history.append(Window(rows, medians, (0.0,) * len(rows)))
        wanted = decide(history, rows, max_change=0.2).rows
        changes += [(rows, wanted)] if wanted != rows else []
        rows = wanted
    assert len(changes) <= 2
    assert len({after for _, after in changes}) == len(changes), "no shares come back"


def test_a_change_of_speed_is_followed_within_three_windows() -> None:
    rows, history = (32, 32), [window((32, 32), (1.0, 1.0))] * 50
    assert decide(history, rows, max_change=0.2).rows == rows
    for _ in range(3):
        history.append(window(rows, (1.0, 0.5)))
        rows = decide(history, rows, max_change=0.2).rows
    longest = max(rows[0] / 1.0, rows[1] / 0.5)
    assert (1 - 2 * DEAD_BAND) * longest <= 64 / 1.5, "near the best there is"


@settings(max_examples=100, deadline=None)
@given(speeds=SPEEDS, spare=st.floats(1.0, 2.0))
def test_no_worker_gets_more_rows_than_its_memory_holds(speeds: tuple[float, ...], spare: float) -> None:
    rows = rows_of((1,) * len(speeds), 256)
    most = tuple(int(mine * spare) + 1 for mine in rows)
    _, found = balanced(rows, speeds, most=most)
    assert all(mine <= cap for mine, cap in zip(found, most, strict=True))


def test_a_slow_input_is_named_and_shares_stay() -> None:
    slow = Window((8, 8), (0.1, 0.2), (0.0, 0.3))
    assert decide([slow], (8, 8), max_change=0.2).slow_input is None, "one window is too little to name it"
    found = decide([slow] * LOOK_BACK, (8, 8), max_change=0.2)
    assert (found.rows, found.slow_input) == ((8, 8), 1)
    hidden = decide([Window((8, 8), (0.1, 0.4), (0.2, 0.0))], (8, 8), max_change=0.2)
    assert hidden.slow_input is None, "the worker that is waited for does not wait for its input"
    assert hidden.rows[0] > 8


@pytest.mark.parametrize("computing", [(0.0, 0.1), (0.1, 0.0)])
def test_what_was_not_measured_changes_nothing(computing: tuple[float, float]) -> None:
    assert decide([Window((8, 8), computing, (0.0, 0.0))], (8, 8), max_change=0.2).rows == (8, 8)
    assert decide([], (8, 8), max_change=0.2).rows == (8, 8)


def test_windows_of_other_shares_do_not_count() -> None:
    old = Window((8, 8), (0.1, 0.4), (0.0, 0.0))
    assert decide([old], (13, 3), max_change=0.2).rows == (13, 3)


def test_a_large_batch_is_counted_in_units() -> None:
    assert rows_of((3, 1), 100_000) == (3072, 1024)
    assert rows_of((3, 1), 100_000, (50_000, 100_000)) == (2048, 2048)
    assert rows_of((9, 1), 4) == (3, 1)


def test_shares_that_rest_are_compared_less_often_and_never_given_up() -> None:
    found = [interval(20, unchanged) for unchanged in range(40)]
    assert found[:LOOK_BACK] == [20] * LOOK_BACK, "as many windows as count together"
    assert found == sorted(found)
    assert found[-1] == 8 * 20
