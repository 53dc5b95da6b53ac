"""The estimates of the gradient noise scale, against all batches that there are."""

import itertools
import math

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.callbacks.noise_scale_math import Averages, Norms, verdict
from tfdist.errors import ConfigError


def norms_of(gradients: np.ndarray, parts: int) -> Norms:
    """Norms of a big batch of the given gradients and of its parts."""
    small = gradients.reshape(parts, -1, gradients.shape[1]).mean(axis=1)
    return Norms(
        small_batch=len(gradients) // parts,
        big_batch=len(gradients),
        small=float((small**2).sum(axis=1).mean()),
        big=float((small.mean(axis=0) ** 2).sum()),
    )


@pytest.mark.parametrize("parts", [2, 4])
def test_the_estimates_have_no_bias(parts: int) -> None:
    """Their mean over every possible batch is the truth."""
    each = np.random.default_rng(0).normal(size=(3, 2)) + np.array([1.0, -0.5])
    mean = each.mean(axis=0)
    found = [norms_of(each[list(chosen)], parts) for chosen in itertools.product(range(3), repeat=4)]
    assert np.mean([one.squared_gradient for one in found]) == pytest.approx((mean**2).sum())
    assert np.mean([one.noise for one in found]) == pytest.approx(((each - mean) ** 2).sum(axis=1).mean())


def measured(noise: float, squared_gradient: float) -> Norms:
    return Norms(small_batch=2, big_batch=8, small=squared_gradient + noise / 2, big=squared_gradient + noise / 8)


def test_both_are_averaged_apart() -> None:
    averages = Averages(0.75)
    assert math.isnan(averages.noise_scale)
    for noise, squared in ((8.0, 1.0), (16.0, -1.0), (4.0, 3.0)):
        averages.add(measured(noise, squared))
    weights = np.array([0.75**2, 0.75, 1.0])
    noise, squared = np.average([8.0, 16.0, 4.0], weights=weights), np.average([1.0, -1.0, 3.0], weights=weights)
    assert averages.noise == pytest.approx(noise)
    assert averages.squared_gradient == pytest.approx(squared)
    assert averages.noise_scale == pytest.approx(noise / squared)


def test_what_was_learnt_is_kept() -> None:
    averages, other = Averages(0.9), Averages(0.9)
    averages.add(measured(3.0, 2.0))
    other.set_state(averages.get_state())
    for one in (averages, other):
        one.add(measured(5.0, 1.0))
    assert other.get_state() == averages.get_state()
    assert other.measurements == 2


def test_what_is_not_finite_is_left_out() -> None:
    averages = Averages(0.9)
    averages.add(measured(3.0, 2.0))
    averages.add(Norms(small_batch=2, big_batch=8, small=math.nan, big=1.0))
    assert averages.measurements == 1
    assert averages.noise_scale == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("decay", "name", "received"), [(-0.1, "decay", -0.1), (1.0, "1 - decay", 0.0), (math.nan, "decay", math.nan)]
)
def test_a_decay_must_let_something_in(decay: float, name: str, received: float) -> None:
    with refused(ConfigError, name=name, received=received):
        Averages(decay)


@pytest.mark.parametrize(
    ("noise", "squared_gradient", "facts"),
    [
        (100.0, 1.0, ("100 examples", "1 measurement", "batch of 50", "3.0 times", "1.5 times")),
        (100.0, -1.0, ("far above 50 examples",)),
        (-1.0, 1.0, ("0 examples", "1 measurement", "batch of 50", "1.0 times", "inf times")),
    ],
)
def test_a_sentence_says_which_batch_pays(noise: float, squared_gradient: float, facts: tuple[str, ...]) -> None:
    averages = Averages(0.0)
    averages.add(measured(noise, squared_gradient))
    said = verdict(averages, 50)
    assert [fact for fact in facts if fact not in said] == []


def test_a_sentence_says_that_nothing_was_measured() -> None:
    assert "nothing was measured" in verdict(Averages(0.5), 8)
