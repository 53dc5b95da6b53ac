"""One wording per check: what passes, what is refused with which error, and what the message says."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, TfdistError


def test_integers() -> None:
    assert validation.integer("n", np.int64(3)) == 3
    assert type(validation.integer("n", np.int64(3))) is int
    assert validation.parse_integer("N", " +3 ", minimum=3, maximum=3) == 3


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, [1], np.array([1, 2]), int])
def test_what_is_no_integer(value: Any) -> None:
    with pytest.raises(ConfigTypeError, match=r"^n is .* \(\w+\); it must be an integer\.") as caught:
        validation.integer("n", value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TfdistError)


@pytest.mark.parametrize("text", ["", " ", "1.0", "1e3", "0x1", "1_0", "--1", "²", "١", "True", "9" * 101])
def test_text_that_is_no_integer(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^N is '"):
        validation.parse_integer("N", text)


def test_bounds_and_hints_are_shown() -> None:
    for check, value in ((validation.integer, 5), (validation.parse_integer, "5")):
        with pytest.raises(ConfigError) as caught:
            check("n", value, minimum=1, maximum=4, hint="Use less.")  # type: ignore[operator]
        assert str(caught.value) == f"n is {value!r}; it must be an integer from 1 to 4. Use less."
    with pytest.raises(ConfigError, match="a finite number above 0 and of at most 1"):
        validation.number("x", 0, above=0, maximum=1)
    with pytest.raises(ConfigError, match="an integer of at least 1"):
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
    with pytest.raises(ConfigError, match="not empty"):
        validation.text("t", "  ")
    for value in (True, 1.0, "1", [1]):
        with pytest.raises(ConfigError, match="one of 0, 1"):
            validation.one_of("c", value, (0, 1))


def test_long_values_are_shortened() -> None:
    shown = validation.shown("x" * 1000, limit=50)
    assert len(shown) == 50
    assert "..." in shown
