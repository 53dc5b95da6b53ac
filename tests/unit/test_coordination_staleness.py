"""No gradient is staler than the bound, whatever the order in which workers answer."""

import random

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.training.parameter_servers.staleness import Bound, Distribution


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("limit", [0, 1, 2, 5])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_any_order_of_answers_keeps_the_bound_and_ends(seed: int, limit: int, workers: int) -> None:
    draw = random.Random(seed)
    bound, seen = Bound(limit), Distribution()
    computing: list[int] = []
    finished: list[int] = []
    left = 60
    while left or computing or finished:
        while left and len(computing) + len(finished) < workers and bound.may_start():
            computing.append(bound.start())
            left -= 1
        applicable = [ticket for ticket in finished if bound.may_apply(ticket)]
        if applicable and (draw.random() < 0.5 or not computing):
            ticket = draw.choice(applicable)
            finished.remove(ticket)
            seen.add(bound.apply(ticket))
        else:
            assert computing, "nothing can be applied, and nobody computes"
            finished.append(computing.pop(draw.randrange(len(computing))))
    assert seen.count == bound.version == 60
    assert seen.largest <= limit


def test_without_a_bound_all_may_start_and_staleness_is_counted() -> None:
    bound = Bound(None)
    tickets = [bound.start() for _ in range(5)]
    assert bound.may_start()
    assert [bound.apply(ticket) for ticket in reversed(tickets)] == [0, 1, 2, 3, 4]


def test_a_dropped_gradient_holds_nobody_up() -> None:
    bound = Bound(1)
    old, new = bound.start(), bound.start()
    assert bound.apply(new) == 0
    third = bound.start()
    assert not bound.may_apply(third)
    bound.drop(old)
    assert bound.may_apply(third)
    assert bound.under_way == 1


def test_of_one_worker_nothing_is_stale() -> None:
    bound = Bound(0)
    for _ in range(3):
        ticket = bound.start()
        assert not bound.may_start()
        assert bound.apply(ticket) == 0


@pytest.mark.parametrize(
    ("wrong", "kind"), [(-1, ConfigError), (True, ConfigTypeError), ("2", ConfigTypeError), (1.5, ConfigTypeError)]
)
def test_a_bound_is_a_number_of_updates(wrong: object, kind: type[ConfigError]) -> None:
    with refused(kind, name="max_staleness", received=wrong):
        Bound(wrong)  # type: ignore[arg-type]


def test_a_distribution_without_gradients_has_zeros() -> None:
    empty = Distribution()
    assert (empty.count, empty.mean, empty.quantile(0.9), empty.largest) == (0, 0.0, 0, 0)
