"""Schedules of workers that meet seldom: pure functions of the number of steps."""

from typing import Any

import pytest

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.gradients.outer import schedules
from tfdist.gradients.outer.schedules import LocalSGD, PostLocalSGD, Synchronization

SCHEDULES = [LocalSGD(every=1), LocalSGD(every=5), PostLocalSGD(after=7, every=3), PostLocalSGD(after=4, every=1)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_what_is_left_ends_where_something_changes(schedule: Synchronization) -> None:
    """Steps that run in one graph pass no event, and are all of one kind."""
    for step in range(40):
        left = schedule.left(step)
        assert left >= 1
        within = range(step + 1, min(step + left, 60))
        assert all(not schedule.events(one) for one in within)
        assert len({schedule.reduces(one) for one in range(step, min(step + left, 60))}) == 1


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
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
    assert schedules.require("local-sgd:every=8, average_moments=false") == LocalSGD(every=8, average_moments=False)
    assert schedules.require(LocalSGD(every=8)) == LocalSGD(every=8)
    assert schedules.require(None) is None


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ("local-sgd", ConfigError, "every"),
        ("local-sgd:every=0", ConfigError, "every"),
        ("local-sgd:every=x", ConfigError, "x"),
        ("local-sgd:evry=3", ConfigError, "every"),
        ("nothing:every=3", ConfigError, "local-sgd"),
        ("", ConfigError, "synchronization"),
        ("local-sgd:every=3,average_moments=1", ConfigError, "false"),
        (LocalSGD, ConfigTypeError, "LocalSGD(...)"),
        (8, ConfigTypeError, "8"),
    ],
)
def test_other_things_are_refused(given: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as raised:
        schedules.require(given)
    assert says in str(raised.value)


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 2.5}, {"every": True}, {"every": 2, "average_moments": 1}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LocalSGD(**options)
