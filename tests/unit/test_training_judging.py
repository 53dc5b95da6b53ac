"""Verdicts on a value of a batch: a mean, a sum or neither, by its values on parts, and on examples given twice."""

from collections.abc import Callable

import numpy as np
import pytest

from tfdist.training.replica.judging import (
    Change,
    Dependence,
    StateRule,
    Verdict,
    agreed,
    agreed_rule,
    judge,
    judge_state,
)

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


FORMER = np.array([3.0, 8.0])


def _state(
    function: Callable[[np.ndarray], np.ndarray], dependence: Dependence, *, kept: float = 1.0, fed: bool = False
) -> Verdict:
    def change(x: np.ndarray) -> Change:
        return FORMER, function(x)

    parts = [(FIRST / len(X), change(X[:FIRST])), (1 - FIRST / len(X), change(X[FIRST:]))]
    twice = None if fed else change(np.concatenate([X, X]))
    return judge_state(change(X), parts, twice, dependence=dependence, kept=kept, tolerance=1e-6)


@pytest.mark.parametrize(
    ("function", "dependence", "expected"),
    [
        (lambda x: FORMER + len(x), "added", "sum"),
        (lambda x: FORMER + x.sum(), "added", "sum"),
        (lambda x: FORMER + 1, "added", "equal"),
        (lambda x: FORMER + 0.1 * x.mean(), "added", "mean"),
        (lambda x: FORMER + np.median(x), "added", "neither"),
        (lambda x: np.full(2, len(x)), "none", "sum"),  # a count of the last batch
        (lambda x: np.full(2, x.mean()), "none", "mean"),
        (lambda x: np.full(2, x.max()), "none", "maximum"),
        (lambda x: np.full(2, x.min()), "none", "minimum"),
        (lambda x: x[-2:], "none", "last"),
        (lambda x: np.full(2, 5.0), "none", "equal"),
        (lambda x: np.maximum(FORMER - 9, x.max()), "selected", "maximum"),
        (lambda x: np.minimum(FORMER, x.min()), "selected", "minimum"),
        (lambda x: np.maximum(FORMER, x.max()), "selected", "unknown"),  # nothing is larger than before
        (lambda x: np.where(FORMER > 5, FORMER + x.sum(), FORMER), "selected", "neither"),
        (lambda x: FORMER + len(x), "other", "neither"),  # begins anew one day, for all that is known
        (lambda x: FORMER, "added", "unknown"),
        (lambda x: FORMER + np.inf, "added", "unknown"),
        (lambda x: FORMER + (np.nan if len(x) < 9 else 1), "added", "neither"),
    ],
)
def test_a_state_is_judged_by_what_is_added_to_what_is_kept(
    function: Callable[[np.ndarray], np.ndarray], dependence: Dependence, expected: Verdict
) -> None:
    assert _state(function, dependence) == expected


def test_a_state_that_is_scaled_is_a_sum_or_a_mean_of_what_is_new() -> None:
    assert _state(lambda x: 0.9 * FORMER + 0.1 * len(x), "scaled", kept=0.9) == "sum"
    assert _state(lambda x: 0.9 * FORMER + 0.1 * x.mean(), "scaled", kept=0.9) == "mean"
    assert _state(lambda x: 0.9 * FORMER + 0.1 * np.median(x), "scaled", kept=0.9) == "neither"


def test_elements_that_parts_replace_are_added_up_where_each_is_replaced_once() -> None:
    def replaced(x: np.ndarray) -> np.ndarray:
        found = FORMER.copy()
        found[0] = x[0] if x[0] == X[0] else found[0]
        found[1] = x[-1] if x[-1] == X[-1] else found[1]
        return found

    assert _state(replaced, "replaced") == "sum"
    assert _state(lambda x: np.array([x.mean(), 8.0]), "replaced") == "neither"


def test_states_that_are_fed_are_judged_without_examples_given_twice() -> None:
    assert _state(lambda x: np.full(2, 5.0), "other", fed=True) == "equal"
    assert _state(lambda x: FORMER + x.sum(), "added", fed=True) == "sum"


def test_rules_agree_where_verdict_and_factor_do() -> None:
    sums = [StateRule("sum", 0.9), StateRule("unknown"), StateRule("sum", 0.9, at_once=True)]
    assert agreed_rule(sums) == StateRule("sum", 0.9, at_once=True)
    assert agreed_rule([StateRule("sum", 0.9), StateRule("sum", 0.8)]).verdict == "neither"
    assert agreed_rule([StateRule("sum"), StateRule("mean")]).verdict == "neither"
    assert agreed_rule([StateRule("unknown")]).verdict == "unknown"
