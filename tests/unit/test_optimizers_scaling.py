"""The learning rate that goes with a batch."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.optimizers import scale_learning_rate


class SGD:
    """Named as Keras' optimizer is."""


class MyAdam(type("Adam", (), {})):  # type: ignore[misc]
    """A user's own, derived from one that is known."""


class Wrapper:
    """Wraps another, as loss scaling does."""

    inner_optimizer = MyAdam()


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        *[(one, 0.8) for one in ("sgd", "LARS", SGD, SGD())],
        *[(one, 0.1 * 8**0.5) for one in ("lamb", MyAdam(), Wrapper())],
    ],
)
def test_the_rule_goes_with_the_family(optimizer: Any, expected: float) -> None:
    assert scale_learning_rate(0.1, 256, 2048, optimizer=optimizer) == pytest.approx(expected)


@given(st.floats(1e-6, 10), st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(["linear", "sqrt", "none"]))
def test_there_and_back_is_where_it_began(base: float, small: int, large: int, rule: str) -> None:
    there = scale_learning_rate(base, small, large, rule)
    assert math.isclose(scale_learning_rate(there, large, small, rule), base, rel_tol=1e-9)
    assert scale_learning_rate(base, small, small, rule) == base


@pytest.mark.parametrize(
    ("arguments", "kind", "name", "received"),
    [
        ((0.0, 1, 1), ConfigError, "base", 0.0),
        ((0.1, 0, 1), ConfigError, "base_batch", 0),
        ((0.1, 1, 1.5), ConfigTypeError, "batch", 1.5),
        ((0.1, 1, 2, "cubic"), ConfigError, "rule", "'cubic'"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[Any, ...], kind: type[ConfigError], name: str, received: object
) -> None:
    with refused(kind, name=name, received=received):
        scale_learning_rate(*arguments)


def test_an_unknown_optimizer_needs_a_rule() -> None:
    with refused(ConfigError, name="optimizer", received="'shampoo'", mentions=["rule="]):
        scale_learning_rate(0.1, 1, 2, optimizer="shampoo")
    assert scale_learning_rate(0.1, 1, 2, "linear", optimizer="shampoo") == 0.2
