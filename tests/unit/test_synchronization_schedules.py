"""Schedules of workers that meet seldom: pure functions of the number of steps."""

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.gradients.outer import meeting_schedules
from tfdist.gradients.outer.fragments import boxes, divided
from tfdist.gradients.outer.meeting_schedules import (
    DiLoCo,
    ElasticAveraging,
    Gossip,
    LocalSGD,
    PostLocalSGD,
    Synchronization,
    mixing,
    rounds,
)
from tfdist.gradients.outer.trial_steps import TIMED, Trial
from tfdist.planner.meeting_interval import Meetings, smallest_interval

SCHEDULES = [
    *(LocalSGD(every=1), LocalSGD(every=5), PostLocalSGD(after=7, every=3), PostLocalSGD(after=4, every=1)),
    *(DiLoCo(every=1), DiLoCo(every=6), Gossip(), Gossip(every=3), ElasticAveraging(every=4, alpha=0.1)),
    *(DiLoCo(every=10, fragments=3, delay=3), DiLoCo(every=7, fragments=7), DiLoCo(every=5, delay=4)),
]
TRIALS = [
    *(Trial(asked=LocalSGD(every="auto"), begun=0), Trial(asked=LocalSGD(every="auto"), begun=5)),
    *(Trial(asked=PostLocalSGD(after=7, every="auto"), begun=begun) for begun in (0, 9)),
]
AVERAGING = [one for one in SCHEDULES if isinstance(one, LocalSGD)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_what_is_left_ends_where_something_changes(schedule: Synchronization) -> None:
    """Steps that run in one graph pass no event, and are all of one kind."""
    for step in range(40):
        left = schedule.left(step)
        assert left >= 1
        within = range(step + 1, min(step + left, 60))
        assert all(not schedule.events(one) for one in within)
        assert len({schedule.reduces(one) for one in range(step, min(step + left, 60))}) == 1


@pytest.mark.parametrize("trial", TRIALS, ids=repr)
def test_a_trial_ends_with_the_choice(trial: Trial) -> None:
    step, timed = trial.begun, 0
    while not trial.events(step):
        left = trial.left(step)
        assert len({(trial.reduces(one), trial.is_timed(one)) for one in range(step, step + left)}) == 1
        timed += left if trial.is_timed(step) else 0
        assert not (trial.reduces(step) and trial.is_timed(step))
        step += left
    assert timed == TIMED


def test_an_open_interval_answers_nothing() -> None:
    schedule = DiLoCo(every="auto", fragments=4, delay=3)
    for ask in (schedule.left, schedule.events, schedule.agrees):
        with pytest.raises(ConfigError) as raised:
            ask(3)
        assert raised.value.name == "every"


@pytest.mark.parametrize(
    ("step", "travel", "computing", "fragments", "delay", "chosen"),
    [
        (1.0, 0.0, 0.0, 1, 0, 1),
        (1.0, 0.05, 0.0, 1, 0, 1),
        (1.0, 0.051, 0.0, 1, 0, 2),
        (0.01, 0.8, 0.0, 1, 0, 1600),
        (0.01, 0.2, 0.0, 4, 0, 1600),  # four quarters wait as long as the whole
        (0.01, 0.2, 0.0, 4, 20, 84),  # nobody waits; one arrives before the next leaves
        (0.01, 0.2, 0.0, 4, 10, 800),
        (0.01, 0.2, 0.01, 4, 20, 84),
        (0.01, 0.2, 0.02, 4, 20, 160),
        (2.0, 0.3, 0.0, 3, 0, 9),
    ],
)
def test_the_smallest_interval_waits_a_twentieth(
    step: float, travel: float, computing: float, fragments: int, delay: int, chosen: int
) -> None:
    given = Meetings(
        step_seconds=step, travel_seconds=travel, computing_seconds=computing, fragments=fragments, delay=delay
    )
    assert smallest_interval(given) == chosen
    assert given.period_seconds <= 0.05 * chosen * step + 1e-9


@pytest.mark.parametrize("wrong", [{"step_seconds": 0.0}, {"travel_seconds": -1.0}, {"fragments": 0}, {"delay": -1}])
def test_meetings_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        Meetings(**{"step_seconds": 1.0, "travel_seconds": 1.0, **wrong})
    assert raised.value.name == next(iter(wrong))


@pytest.mark.parametrize("schedule", AVERAGING, ids=repr)
def test_weights_are_equal_from_a_meeting_to_the_next_local_step(schedule: Synchronization) -> None:
    equal = True
    for step in range(40):
        equal = (equal and schedule.reduces(step - 1)) or bool(schedule.events(step)) if step else True
        assert schedule.is_equal(step) is equal


def test_meetings_are_counted_from_the_first_local_step() -> None:
    schedule = PostLocalSGD(after=7, every=3)
    assert [step for step in range(20) if schedule.events(step)] == [10, 13, 16, 19]
    assert [step for step in range(9) if schedule.reduces(step)] == list(range(7))


def test_texts_and_values_are_the_same() -> None:
    assert meeting_schedules.require("local-sgd:every=8, average_moments=false") == LocalSGD(
        every=8, average_moments=False
    )
    assert meeting_schedules.require(LocalSGD(every=8)) == LocalSGD(every=8)
    grouped = meeting_schedules.require("local-sgd:every=8,inside=4")
    assert grouped == LocalSGD(every=8, inside=4)
    assert (meeting_schedules.inside(grouped), meeting_schedules.inside(Gossip())) == (4, 1)
    assert meeting_schedules.require("diloco:every=auto,delay=5") == DiLoCo(every="auto", delay=5)
    assert meeting_schedules.require("diloco:every=4,keep=0.5") == DiLoCo(every=4, keep=0.5)
    assert meeting_schedules.require(None) is None


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ("local-sgd", ConfigError, "every"),
        ("local-sgd:every=0", ConfigError, "every"),
        ("local-sgd:every=x", ConfigError, "auto"),
        ("local-sgd:evry=3", ConfigError, "every"),
        ("nothing:every=3", ConfigError, "local-sgd"),
        ("", ConfigError, "synchronization"),
        ("local-sgd:every=3,average_moments=1", ConfigError, "false"),
        ("local-sgd:every=3,inside=0", ConfigError, "inside"),
        ("gossip:inside=2", ConfigError, "topology"),
        (LocalSGD, ConfigTypeError, "LocalSGD(...)"),
        (8, ConfigTypeError, "8"),
    ],
)
def test_other_things_are_refused(given: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as raised:
        meeting_schedules.require(given)
    assert says in str(raised.value)


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 2.5}, {"every": True}, {"every": 2, "average_moments": 1}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LocalSGD(**options)


@pytest.mark.parametrize(("every", "count", "delay"), [(10, 3, 3), (7, 7, 0), (100, 4, 5)])
def test_each_fragment_is_sent_once_a_period_and_applied_later(every: int, count: int, delay: int) -> None:
    schedule = DiLoCo(every=every, fragments=count, delay=delay)
    under_way: set[int] = set()
    sent = dict.fromkeys(range(count), 0)
    for step in range(1, 4 * every + 1):
        for kind, fragment in schedule.events(step):
            if kind == "apply":
                under_way.remove(fragment)
            else:
                assert not under_way, "one at a time"
                sent[fragment] += 1
                under_way |= {fragment} if kind == "send" else set()
    assert set(sent.values()) == {4}


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 9))
def test_fragments_have_every_number_once(sizes: list[int], count: int) -> None:
    found = divided(sizes, count)
    numbers = [(piece.variable, at) for pieces in found for piece in pieces for at in range(piece.begin, piece.end)]
    assert numbers == [(variable, at) for variable, size in enumerate(sizes) for at in range(size)]
    lengths = [sum(piece.end - piece.begin for piece in pieces) for pieces in found]
    assert max(lengths) - min(lengths) <= 1


@given(st.data(), st.lists(st.integers(1, 5), max_size=4))
def test_boxes_have_the_numbers_of_a_piece_in_order(data: st.DataObject, shape: list[int]) -> None:
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    begin = data.draw(st.integers(0, numbers.size - 1))
    end = data.draw(st.integers(begin + 1, numbers.size))
    found = [numbers[box].ravel() for box in boxes(shape, begin, end)]
    assert np.concatenate(found).tolist() == list(range(begin, end))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("schedule", [Gossip(), Gossip(topology="exponential"), Gossip(push_sum=True)], ids=repr)
def test_mixing_keeps_sums_and_forgets_differences(schedule: Gossip, workers: int) -> None:
    """The matrix is doubly stochastic, and disagreement contracts by its second singular value."""
    tables = [np.array(mixing(schedule, workers, number)) for number in range(rounds(schedule, workers))]
    for table in tables:
        assert np.abs(table.sum(axis=0) - 1).max() <= 1e-12
        assert np.abs(table.sum(axis=1) - 1).max() <= 1e-12
    whole = functools.reduce(lambda before, table: table @ before, tables)
    gap = np.sort(np.abs(np.linalg.eigvals(whole)))[-2] if workers > 1 else 0.0
    values = np.random.default_rng(0).normal(size=workers)
    apart = []
    for _ in range(20):
        values = whole @ values
        apart.append(np.linalg.norm(values - values.mean()))
    if gap > 1e-9:
        assert (apart[-1] / apart[-9]) ** (1 / 8) == pytest.approx(gap, rel=0.05)
    else:
        assert apart[-1] < 1e-9


def test_push_sum_conserves_both_sums_exactly() -> None:
    """In fractions, where nothing is rounded: halves of binary numbers are exact."""
    values, weights = [Fraction(3), Fraction(5), Fraction(-7)], [Fraction(1)] * 3
    for number in range(30):
        table = [[Fraction(one) for one in row] for row in mixing(Gossip(push_sum=True), 3, number)]
        values = [sum(w * v for w, v in zip(row, values, strict=True)) for row in table]
        weights = [sum(w * v for w, v in zip(row, weights, strict=True)) for row in table]
        assert (sum(values), sum(weights)) == (1, 3)
    assert all(
        abs(value / weight - Fraction(1, 3)) < Fraction(1, 100) for value, weight in zip(values, weights, strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"every": 4, "fragments": 5},
        {"every": 10, "fragments": 3, "delay": 4},
        {"every": 3, "delay": -1},
        {"every": 3, "keep": 1.5},
    ],
)
def test_outer_steps_check_their_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DiLoCo(**options)
