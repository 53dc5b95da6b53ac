"""One wording per check: what passes, what is refused with which error, and what the message says."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, TfdistError


def test_integers() -> None:
    assert validation.integer("n", np.int64(3)) == 3
    assert type(validation.integer("n", np.int64(3))) is int
    assert validation.parse_integer("N", " +3 ", minimum=3, maximum=3) == 3


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, [1], np.array([1, 2]), int])
def test_what_is_no_integer(value: Any) -> None:
    with refused(ConfigTypeError, name="n", received=repr(value), mentions=[f"({type(value).__name__})"]) as caught:
        validation.integer("n", value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TfdistError)


@pytest.mark.parametrize("text", ["", " ", "1.0", "1e3", "0x1", "1_0", "--1", "²", "١", "True", "9" * 101])
def test_text_that_is_no_integer(text: str) -> None:
    with refused(ConfigError, name="N", received=text):
        validation.parse_integer("N", text)


def test_bounds_and_hints_are_shown() -> None:
    for check, value in ((validation.integer, 5), (validation.parse_integer, "5")):
        with refused(ConfigError, name="n", received=value, mentions=[f"n is {value!r}", "from 1 to 4", " Use less."]):
            check("n", value, minimum=1, maximum=4, hint="Use less.")  # type: ignore[operator]
    with refused(ConfigError, name="x", received=0, mentions=["above 0", "at most 1"]):
        validation.number("x", 0, above=0, maximum=1)
    with refused(ConfigError, name="n", received=0, mentions=["at least 1"]):
        validation.integer("n", 0, minimum=1)


def test_numbers() -> None:
    assert validation.number("x", np.float32(0.5), minimum=0) == 0.5
    assert validation.number("x", Fraction(1, 2)) == 0.5
    for value in (math.nan, math.inf, -math.inf, 10**400):
        with pytest.raises(ConfigError):
            validation.number("x", value)
    for value in (True, "1", b"1", None, 1j, np.array([1.0, 2.0])):
        with pytest.raises(ConfigTypeError):
            validation.number("x", value)


def test_bools_texts_and_choices() -> None:
    assert validation.boolean("b", False) is False
    assert validation.text("t", "x") == "x"
    assert validation.one_of("c", "x", ("y", "x")) == "x"
    assert validation.one_of("c", 1, (0, 1)) == 1
    for check, value in ((validation.boolean, 1), (validation.text, b"x"), (validation.text, None)):
        with pytest.raises(ConfigTypeError):
            check("v", value)  # type: ignore[operator]
    with refused(ConfigError, name="t", received="  "):
        validation.text("t", "  ")
    for value in (True, 1.0, "1", [1]):
        with refused(ConfigError, name="c", received=value, mentions=["0, 1"]):
            validation.one_of("c", value, (0, 1))


def test_long_values_are_shortened() -> None:
    shown = validation.shown("x" * 1000, limit=50)
    assert len(shown) == 50
    assert "..." in shown
