"""The cost of private steps, and budgets."""

import math
import pickle

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.privacy import accounting
from tfdist.privacy.accounting import (
    LEAST_NOISE,
    NoisySteps,
    checked_delta,
    checked_noise,
    epsilon,
    noise_multiplier_for,
)
from tfdist.privacy.budget import Budget, PrivacyBudgetError

# rate, noise multiplier, steps, delta, and epsilon by dp-accounting's privacy loss distributions
REFERENCE = [
    (256 / 60000, 1.1, 14062, 1e-5, 2.3817),
    (0.01, 0.8, 1000, 1e-5, 3.1410),
    (1024 / 50000, 1.5, 2000, 1e-5, 2.9366),
    (0.01, 1.0, 1000, 1e-6, 2.1245),
    (1, 4, 1, 1e-5, 0.9263),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "wanted"), REFERENCE)
def test_epsilon_is_that_of_privacy_loss_distributions(
    rate: float, noise: float, steps: int, delta: float, wanted: float
) -> None:
    assert abs(epsilon([NoisySteps(noise, rate, steps)], delta) - wanted) < 1e-3


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "budget"), REFERENCE[1:])
def test_noise_is_the_smallest_that_a_budget_allows(
    rate: float, noise: float, steps: int, delta: float, budget: float
) -> None:
    found = noise_multiplier_for(budget, delta, rate, steps)
    assert abs(found - noise) < 2e-3 * noise + 1e-4
    assert budget - 1e-3 <= epsilon([NoisySteps(found, rate, steps)], delta) <= budget


def test_steps_of_several_kinds_add_up() -> None:
    together = epsilon([NoisySteps(1.0, 0.1, 6), NoisySteps(1.0, 0.1, 4)], 1e-4)
    assert together == pytest.approx(epsilon([NoisySteps(1.0, 0.1, 10)], 1e-4), abs=2e-3)
    assert epsilon([], 1e-4) == 0.0
    assert epsilon([NoisySteps(0.0, 0.1, 1)], 1e-4) == math.inf


def test_a_budget_refuses_what_would_spend_more_and_says_how_much_is_left() -> None:
    budget = Budget(2.0, 1e-4)
    noise = budget.noise_multiplier(0.1, 20)
    spent = budget.after(NoisySteps(noise, 0.1, 15))
    spent.require(NoisySteps(noise, 0.1, 5))
    with refused(PrivacyBudgetError, name="epsilon", mentions=("5 steps are left",)) as caught:
        spent.require(NoisySteps(noise, 0.1, 9))
    assert caught.value.epsilon == 2.0
    assert caught.value.spent == spent.spent_epsilon < 2.0 < caught.value.would_spend
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - an error of a worker
    assert (str(copy), copy.would_spend) == (str(caught.value), caught.value.would_spend)


def test_a_budget_is_restored_from_its_state() -> None:
    spent = (
        Budget(2.0, 1e-4).after(NoisySteps(1.5, 0.1, 3)).after(NoisySteps(1.5, 0.1, 2)).after(NoisySteps(1.5, 0.2, 1))
    )
    assert spent.spent == (NoisySteps(1.5, 0.1, 5), NoisySteps(1.5, 0.2, 1))
    assert Budget(2.0, 1e-4).restored(spent.state()) == spent
    with refused(ConfigError, name="steps of the state"):
        Budget(2.0, 1e-4).restored({"spent": [[1.0, 0.1, -3]]})


@pytest.mark.parametrize("delta", [0, 1, -1, 2, float("nan")])
def test_delta_is_a_probability_between_0_and_1(delta: float) -> None:
    with refused(ConfigError, name="delta"):
        checked_delta(delta)


@pytest.mark.parametrize("noise", [0, 1e-3, 0.0999, -1, float("nan")])
def test_noise_that_protects_nothing_is_refused(noise: float) -> None:
    with refused(ConfigError, name="noise_multiplier", received=noise, mentions=("at least 0.1", "Leave it out")):
        checked_noise(noise)


def test_noise_for_a_small_budget_is_found_in_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    own, tried = accounting._epsilon, []

    def counted(spent: tuple[NoisySteps, ...], delta: float, coarser: float) -> float:
        tried.append(spent)
        return own(spent, delta, coarser)

    monkeypatch.setattr(accounting, "_epsilon", counted)
    found = noise_multiplier_for(1e-3, 1e-6, 1e-4, 10)
    assert len(tried) < 60
    assert 0.999e-3 < epsilon([NoisySteps(found, 1e-4, 10)], 1e-6) <= 1e-3


def test_a_budget_for_which_any_noise_is_enough_gets_the_least() -> None:
    assert 60 < epsilon([NoisySteps(LEAST_NOISE, 1.0, 1)], 1e-2) < 100
    assert noise_multiplier_for(1e6, 1e-5, 0.5, 3) == LEAST_NOISE


def test_many_steps_with_little_noise_are_computed() -> None:
    """The losses of a Gaussian step have the mean 1 / (2 noise^2), and add up."""
    assert epsilon([NoisySteps(0.2, 1.0, 50_000)], 0.5) == pytest.approx(50_000 / (2 * 0.2**2), rel=1e-3)
    assert 1e3 < epsilon([NoisySteps(LEAST_NOISE, 0.05, 3000)], 1e-3) < 3000 * 50


def test_very_many_steps_cost_no_more_than_by_renyi_divergences() -> None:
    """A finer grid than is affordable in each call gives 0.0926; intervals of the usual width give 0.120."""
    assert 0.092 < epsilon([NoisySteps(4.0, 1e-4, 1_000_000)], 1e-6) < 0.105
