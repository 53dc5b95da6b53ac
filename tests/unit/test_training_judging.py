"""What a value of a batch is, from values of parts of it and of its examples given twice."""

from collections.abc import Callable

import numpy as np
import pytest

from tfdist.training.checks.judging import Verdict, agreed, judge

X = np.random.default_rng(3).normal(size=9)
FIRST = 3


def _tried(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray = X, *, is_random: bool = False) -> Verdict:
    parts = [(FIRST / len(x), function(x[:FIRST])), (1 - FIRST / len(x), function(x[FIRST:]))]
    return judge(function(x), parts, function(np.concatenate([x, x])), tolerance=1e-6, is_random=is_random)


def _contrast(x: np.ndarray) -> np.ndarray:
    return np.array([np.log(np.exp(np.subtract.outer(x, x)).sum(axis=1)).mean()])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: np.array([x.mean(), (x**2).mean()]), "mean"),
        (lambda x: np.array([x.sum(), (x**2).sum()]), "sum"),
        (lambda x: np.array([3.0]), "mean"),  # a penalty on weights
        (lambda x: np.array([3.0 + x.mean()]), "mean"),
        (lambda x: np.array([3.0 + x.sum()]), "neither"),
        (lambda x: np.array([x[x > 0].sum() / max(1, (x > 0).sum())]), "neither"),  # a mask
        (lambda x: np.array([x.mean() if len(x) > FIRST else np.nan]), "neither"),  # nothing under it in a part
        (lambda x: np.array([x.mean(), x.sum()]), "neither"),
        (lambda x: np.array([(x**2).sum() / 4]), "sum"),  # divided by a number of one's own
        (_contrast, "neither"),
        (lambda x: np.zeros(2), "unknown"),
        (lambda x: np.array([np.nan]), "unknown"),
        (lambda x: np.array([np.inf]), "unknown"),
    ],
)
def test_a_mean_is_told_from_a_sum_and_from_neither(
    function: Callable[[np.ndarray], np.ndarray], expected: Verdict
) -> None:
    assert _tried(function) == expected


@pytest.mark.parametrize(("total", "expected"), [(np.mean, "mean"), (np.sum, "sum")])
def test_of_random_values_the_size_tells(total: Callable[[np.ndarray], float], expected: Verdict) -> None:
    random = np.random.default_rng(1)

    def noisy(x: np.ndarray) -> np.ndarray:
        return np.array([total(np.abs(x) + 0.3 * random.uniform(size=len(x)))])

    assert _tried(noisy, is_random=True) == expected


@pytest.mark.parametrize(("total", "expected"), [(np.mean, "mean"), (np.sum, "sum")])
def test_one_example_cannot_be_parted(total: Callable[[np.ndarray], float], expected: Verdict) -> None:
    one = np.array([2.0])
    assert judge(np.array([total(one)]), [], np.array([total(np.tile(one, 2))]), tolerance=1e-6) == expected


def test_workers_agree_on_what_some_have_found() -> None:
    assert agreed(["unknown", "sum", "sum"]) == "sum"
    assert agreed(["sum", "mean"]) == "neither"
    assert agreed([]) == "unknown"
