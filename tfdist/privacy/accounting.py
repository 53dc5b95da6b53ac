"""The privacy cost of noisy steps: epsilon by privacy loss distributions, and the noise that a budget requires.

A step adds Gaussian noise of standard deviation ``noise_multiplier * clip`` to a sum in which each example, chosen with
probability ``rate`` by itself, has at most the norm ``clip``. Two data sets are neighbours if one has one example more.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist import validation
from tfdist.errors import ConfigError, MissingDependencyError

# Privacy losses are taken together in intervals, and epsilon is rounded up: by about 0.6 times the number of steps
# times the square of the width, as measured.
_WIDEST, _NARROWEST, _ROUNDED = 1e-3, 5e-5, 2e-4
_MOST_INTERVALS = 2e6  # in which a usual loss lies; a large one needs no narrower ones
_ROUGH = 10.0  # times wider intervals, where a noise multiplier is looked for
_CLOSE = 1e-3  # how much of epsilon a noise multiplier that was looked for may leave; more of one above 100
_MOST_NOISE = 1e6
LEAST_NOISE = 0.1  # a step with less has an epsilon of 60 and more, which protects nothing


@dataclass(frozen=True)
class NoisySteps:
    """A number of steps with the same noise."""

    noise_multiplier: float  # the noise's standard deviation, in units of the clipping norm
    rate: float  # the probability with which each example is in the batch of a step
    steps: int  # the number of steps


def epsilon(spent: Sequence[NoisySteps], delta: float) -> float:
    """Return the epsilon of all steps together, for this delta; infinite without noise."""
    return _epsilon(tuple(spent), delta, 1.0)


def _epsilon(spent: tuple[NoisySteps, ...], delta: float, coarser: float) -> float:
    there = [one for one in spent if one.steps]
    if not there:
        return 0.0
    if any(not one.noise_multiplier for one in there):
        return math.inf
    wanted = math.sqrt(_ROUNDED / (0.6 * sum(one.steps for one in there)))
    width = min(max(wanted, _NARROWEST), _WIDEST)
    width = coarser * max(width, sum(map(_usual_loss, there)) / _MOST_INTERVALS)
    losses = [_of_a_step(one.noise_multiplier, one.rate, width).self_compose(one.steps) for one in there]
    found = float(functools.reduce(lambda total, one: total.compose(one), losses).get_epsilon_for_delta(delta))
    # over so many steps with little loss in each, intervals cost more than what Renyi's bound is above the truth
    return min(found, _by_renyi(there, delta)) if wanted < _NARROWEST else found


def _by_renyi(there: Sequence[NoisySteps], delta: float) -> float:
    """Return the bound of Renyi divergences, which has no intervals."""
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    for one in there:
        step = dp_accounting.PoissonSampledDpEvent(one.rate, dp_accounting.GaussianDpEvent(one.noise_multiplier))
        accountant.compose(step, one.steps)
    return float(accountant.get_epsilon(delta))


def _usual_loss(taken: NoisySteps) -> float:
    """Return the usual size of the privacy loss of some steps: its mean and three standard deviations."""
    noise, rate = taken.noise_multiplier, taken.rate
    x = np.linspace(-8 * noise, 1 + 8 * noise, 4001)
    without, having = (np.exp(-np.square((x - middle) / noise) / 2) for middle in (0, 1))
    density = (1 - rate) * without + rate * having
    density /= density.sum()
    chosen = math.log(rate) + (x - 0.5) / noise**2 if rate else np.full_like(x, -np.inf)
    loss = np.logaddexp(math.log1p(-rate), chosen) if rate < 1 else chosen
    mean = float(density @ loss)
    return taken.steps * mean + 3 * math.sqrt(taken.steps * float(density @ np.square(loss - mean)))


@functools.lru_cache(maxsize=32)
def _of_a_step(noise_multiplier: float, rate: float, width: float) -> Any:
    return _distributions().from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=width, use_connect_dots=True
    )


def _distributions() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise MissingDependencyError(
            "the package dp-accounting is missing, which computes epsilon. Install it: pip install 'tfdist[privacy]'.",
            name="dp-accounting",
        ) from error
    return privacy_loss_distribution


@functools.lru_cache(maxsize=32)
def noise_multiplier_for(budget: float, delta: float, rate: float, steps: int) -> float:
    """Return the smallest noise multiplier, approximately and above `LEAST_NOISE`, whose steps fit the budget."""

    rough = min(_ROUGH, max(100 * budget, 1.0))  # intervals must be small beside the budget

    def cost(noise_multiplier: float, coarser: float) -> float:
        return _epsilon((NoisySteps(noise_multiplier, rate, steps),), delta, coarser)

    low, high = 0.5, 1.0
    while cost(high, rough) > budget:
        low, high = high, high * 2
        if high > _MOST_NOISE:
            raise ConfigError(
                f"epsilon is {budget}; for {steps} steps with delta {delta} and a rate of {rate:.3g} no noise is "
                "enough. Pass a larger epsilon, or train for fewer steps.",
                name="epsilon",
                received=budget,
            )
    while cost(low, rough) <= budget:
        if low == LEAST_NOISE:
            return low
        low, high = max(low / 1.5, LEAST_NOISE), low
    while high > low * 1.02:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle, rough) <= budget else (middle, high)
    slope = -math.log(high / low) / math.log(cost(high, rough) / cost(low, rough))
    leaves = _CLOSE * max(min(1.0, budget), budget / 100)
    found = high
    while not budget - leaves < (exact := cost(found, 1.0)) <= budget:
        found *= (exact / (budget - leaves / 2)) ** slope
    return found


def checked_noise(noise_multiplier: Any) -> float:
    return validation.number(
        "noise_multiplier",
        noise_multiplier,
        minimum=LEAST_NOISE,
        hint="With less, even one step has an epsilon above 60, which protects nothing. Leave it out, and it follows "
        "from epsilon; or train without privacy.",
    )


def checked_delta(delta: Any) -> float:
    found = validation.number("delta", delta, above=0.0, hint="Pass less than 1 / examples, such as 1e-5.")
    if found >= 1:
        raise ConfigError(
            f"delta is {found}; it must be below 1. Pass less than 1 / examples, such as 1e-5.",
            name="delta",
            received=found,
        )
    return found
