"""The seed that workers agree on where the script sets none: whom it seeds, and whom it leaves alone."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.compat import random_states
from tfdist.training.strategy_mixin import agree_on_seed


class TwoAlike:
    """Two workers of which this one is the chief."""

    def gather(self, values: list[Any]) -> Any:
        return np.array([values, [values[0], 1]])


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.context(), "_seed", None)


def order(seed: int | None) -> list[int]:
    return [int(number) for number in tf.data.Dataset.range(50).shuffle(50, seed=seed)]


def test_a_shuffle_with_a_seed_keeps_its_order() -> None:
    before = order(5)
    agree_on_seed(TwoAlike())  # type: ignore[arg-type]
    assert order(5) == before


def test_a_shuffle_without_a_seed_has_one_order_in_all_starts_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for job in ("a", "a", "b"):
        monkeypatch.setenv("TFDIST_JOB_ID", job)
        monkeypatch.setattr(context.context(), "_seed", None)
        agree_on_seed(TwoAlike())  # type: ignore[arg-type]
        found.append((random_states.seed_of_shuffles(), order(None), order(None)))
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[2][0]
    assert found[0][1] != found[0][2]


def test_a_seed_that_the_script_sets_later_takes_the_place_of_the_agreed_one() -> None:
    assert random_states.seed_of_shuffles() is None
    agree_on_seed(TwoAlike())  # type: ignore[arg-type]
    tf.random.set_seed(3)
    assert random_states.seed_of_shuffles() == 3


def test_a_seed_of_the_script_stays() -> None:
    tf.random.set_seed(3)
    before = order(None)
    tf.random.set_seed(3)
    agree_on_seed(TwoAlike())  # type: ignore[arg-type]
    assert random_states.seed_of_shuffles() == 3
    assert order(None) == before
