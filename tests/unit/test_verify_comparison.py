"""The differences between numbers, and those that count as the same."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.verify.cell_judge import compare

FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def test_the_largest_difference_is_relative_above_one_and_absolute_below() -> None:
    found = compare({"a": [200.0, 0.0], "b": 0.5}, {"a": [100.0, 0.0], "b": 0.25})
    assert found.size == 1.0
    assert found.where == "a[0]: 200.0, one device has 100.0"
    assert compare({"b": 0.5}, {"b": 0.25}).size == 0.25


@given(st.lists(FLOATS, max_size=8))
def test_everything_equals_itself(values: list[float]) -> None:
    assert compare({"x": values}, {"x": values}).size == 0


@given(FLOATS, FLOATS)
def test_a_difference_is_never_nan_and_zero_only_for_equals(one: float, other: float) -> None:
    size = compare({"x": np.float32(one)}, {"x": np.float32(other)}).size
    assert size >= 0
    if size == 0:
        tiny = abs(one - other) / max(1.0, abs(other)) == 0 if math.isfinite(one) and math.isfinite(other) else False
        assert tiny or one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1e30),
        (math.inf, -math.inf),
        ([1.0], [1.0, 1.0]),
        ([[1.0]], [1.0]),
        ("red", "blue"),
        (False, True),
    ],
)
def test_what_cannot_be_measured_differs_infinitely(value: Any, reference: Any) -> None:
    assert compare({"x": value}, {"x": reference}).size == math.inf


@pytest.mark.parametrize(("value", "reference"), [({"a": 1.0}, {}), ({}, {"a": 1.0})])
def test_an_entry_that_one_side_lacks_differs(value: dict[str, float], reference: dict[str, float]) -> None:
    found = compare(value, reference)
    assert found.size == math.inf
    assert found.where.startswith("a: ")


def test_empty_arrays_are_equal_and_texts_are_compared() -> None:
    assert compare({"a": np.zeros((0, 3)), "b": "x y"}, {"a": np.zeros((0, 3)), "b": np.array("x y")}).size == 0


def test_integers_are_not_rounded_away() -> None:
    assert compare({"step": 5}, {"step": 6}).size == pytest.approx(1 / 6)


def test_both_parts_of_complex_numbers_are_compared() -> None:
    assert compare({"a": [1 + 1j]}, {"a": [1 + 2j]}).size == pytest.approx(1 / math.sqrt(5))
    assert compare({"a": [1 + 1j]}, {"a": [1 + 1j]}).size == 0
