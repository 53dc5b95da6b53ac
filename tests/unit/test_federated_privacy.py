"""Privacy of clients: noise and its price, samples, clipping, an audit, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.refusals import refused
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.federated import App, ClientPrivacy, FedAvg, Median, Participation, Scaffold, Update
from tfdist.federated.client_privacy import ClippedSum, PrivateRounds, clipped
from tfdist.federated.rounds.round_machine import sampled
from tfdist.federated.secure.fixed_point import FixedPoint
from tfdist.federated.secure.noisy_words import NoisyWords
from tfdist.privacy import PrivacyBudgetError

W = "weights/w"
CERTAIN = 1e-6  # of a test that its numbers are unlikely by chance


def private(
    noise: float = 1.0, rate: float = 0.1, rounds: int = 1, expected: float = 10.0, **options: Any
) -> PrivateRounds:
    given = {"epsilon": 1e6, "delta": 1e-5, "noise_multiplier": noise, **options}
    return PrivateRounds(ClientPrivacy(**given), rate=rate, rounds=rounds, expected=expected)


def has_deviation(values: Any, deviation: float) -> bool:
    """Whether the variance of normal numbers with mean 0 is this one, by a chi-square test."""
    square = float(np.square(values).sum()) / deviation**2
    return min(stats.chi2.cdf(square, len(values)), stats.chi2.sf(square, len(values))) > CERTAIN


# rate, noise multiplier, rounds, delta, and epsilon by dp-accounting's privacy loss distributions
@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta", "wanted"),
    [(0.01, 0.8, 1000, 1e-5, 3.1410), (1024 / 50000, 1.5, 2000, 1e-5, 2.9366), (1, 4, 1, 1e-5, 0.9263)],
)
def test_rounds_cost_what_privacy_loss_distributions_say(
    rate: float, noise: float, rounds: int, delta: float, wanted: float
) -> None:
    found = private(noise, rate, delta=delta)
    found.restore({"spent": [[noise, rate, rounds - 1]] if rounds > 1 else [], "noise_multiplier": noise})
    assert abs(found.count() - wanted) < 1e-3


def test_noise_is_added_once_and_the_sum_divided_by_the_expected_clients() -> None:
    found = private(1.5, clip=2.0, expected=40.0, seed=1)
    sums = {W: np.full(20_000, 7.0), "statistics/s": np.zeros(5)}
    mean = found.mean(sums, (3, 0))
    assert has_deviation(mean[W] * 40 - 7, 1.5 * 2.0)
    assert not has_deviation(mean[W] * 40 - 7, 1.05 * 1.5 * 2.0)
    assert not mean["statistics/s"].any()
    again, other, attempt = (found.mean(sums, turn)[W] for turn in ((3, 0), (4, 0), (3, 1)))
    assert np.array_equal(mean[W], again)
    for one in (other, attempt, private(1.5, clip=2.0, expected=40.0).mean(sums, (3, 0))[W]):
        assert abs(np.corrcoef(one, mean[W])[0, 1]) < 0.05


def test_no_noise_is_added_twice_but_to_what_it_was_added_before(tmp_path: Path) -> None:
    """A round is repeated after a kill, with the same updates or with others."""
    one, other = {W: np.zeros(20_000)}, {W: np.full(20_000, 1e-9)}

    def begun(done: int | None) -> PrivateRounds:
        privacy = ClientPrivacy(epsilon=1e6, delta=1e-5, noise_multiplier=1.0)
        return PrivateRounds(privacy, rate=0.1, rounds=9, expected=1.0, folder=tmp_path, done=done)

    def differ(first: Any, second: Any) -> bool:
        return abs(np.corrcoef(first[W], second[W])[0, 1]) < 0.05

    first = begun(None)
    noises = [first.mean(one, (0, 0))]
    assert np.array_equal(begun(0).mean(one, (0, 0))[W], noises[0][W])
    assert begun(0).salt == first.salt
    assert differ(begun(0).mean(other, (0, 0)), noises[0])
    for number in (1, 2):
        kept = json.loads((tmp_path / "privacy_key").read_text())["noise"]
        first.begin_round(number)
        assert kept not in (tmp_path / "privacy_key").read_text(), "it would take the noise out of the round before"
        noises.append(first.mean(one, (0, 0)))
        assert all(differ(noises[-1], before) for before in noises[:-1])
        assert np.array_equal(begun(number).mean(one, (0, 0))[W], noises[-1][W])
    assert differ(begun(3).mean(one, (0, 0)), noises[2])  # killed before the key of the round was there
    with refused(ConfigError, name="folder", received=2, path=tmp_path / "privacy_key"):
        begun(2)  # its checkpoint is damaged, and the one before is used
    assert differ(begun(None).mean(one, (0, 0)), noises[0]), "a new run in the folder"
    (tmp_path / "privacy_key").write_bytes(b"\xff")
    with refused(CorruptDataError, path=tmp_path / "privacy_key"):
        begun(0)


@pytest.mark.parametrize(("clients", "honest"), [(3, 2), (10, 7), (50, 29)])
def test_parts_of_clients_add_up_to_the_noise_of_the_sum(clients: int, honest: int) -> None:
    """The parts of the smallest number of honest clients add up exactly to this noise; more parts add up to more."""
    code = FixedPoint(clip=0.5, value_bits=16, clients=clients, bits=32)
    noise = NoisyWords(code=code, noise_multiplier=1.2, clients=clients, honest=honest, length=20_000)
    values = np.full(20_000, 0.001)
    words = code.encode(values, 1)[0]
    generator = np.random.default_rng(clients)
    total = sum(noise.added(words, generator).astype(np.uint64) for _ in range(honest)).astype(np.uint32)  # type: ignore[union-attr]
    exact = round(0.001 * code.largest / 0.5) * 0.5 / code.largest
    assert has_deviation(code.decode(total) - honest * exact, 1.2 * 0.5)
    assert not has_deviation(code.decode(total) - honest * exact, 1.05 * 1.2 * 0.5)


def test_a_rounded_vector_stays_within_the_norm() -> None:
    code = FixedPoint(clip=1.0, value_bits=12, clients=4, bits=32)
    noise = NoisyWords(code=code, noise_multiplier=1.0, clients=4, honest=2, length=5000)
    for seed in range(5):
        vector = clipped({W: 100 * np.random.default_rng(seed).normal(size=5000)}, noise.clip)[0][W]
        rounded = code.decode(code.encode(vector, 1)[0])
        assert 0.9 < np.linalg.norm(rounded) <= 1.0


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"honest": 0}, "threshold"),
        ({"noise_multiplier": 1e5}, "value_bits"),
        ({"noise_multiplier": 1e-4}, "value_bits"),
        ({"length": 10**9}, "value_bits"),
    ],
)
def test_noise_that_a_word_cannot_have_is_refused(options: Any, name: str) -> None:
    code = FixedPoint(clip=1.0, value_bits=16, clients=10, bits=32)
    NoisyWords(code=code, noise_multiplier=1.0, clients=10, honest=5, length=1000)
    with refused(ConfigError, name=name):
        NoisyWords(**{"code": code, "noise_multiplier": 1.0, "clients": 10, "honest": 5, "length": 1000, **options})


@pytest.mark.parametrize(
    ("array", "norm"),
    [([3.0, 4.0], 2.0), ([0.3, 0.4], 0.5), ([1e300, 1e300], 2.0), ([0.0, 0.0], 0.0), ([1e-300, 0], 1e-300), ([], 0.0)],
)
def test_updates_are_clipped_to_a_norm(array: Any, norm: float) -> None:
    found, is_clipped = clipped({W: np.array(array), "statistics/s": np.array([1e9])}, 2.0)
    assert is_clipped == (norm == 2.0)
    assert np.linalg.norm(found[W]) == pytest.approx(norm, rel=1e-12)
    assert not found["statistics/s"].any()


def test_the_sum_of_no_clients_is_zero_and_each_counts_the_same() -> None:
    aggregation = ClippedSum(1.0, {W: np.zeros(2)})
    assert not ClippedSum(1.0, {W: np.zeros(2)}).result()[W].any()
    for weight in (1.0, 900.0):
        aggregation.add(Update({W: np.array([5.0, 0.0])}, 3), weight)
    assert aggregation.result()[W].tolist() == [2.0, 0.0]
    assert aggregation.clipped == 2
    with refused(ConfigError, name=W):
        aggregation.add(Update({W: np.zeros(3)}, 3), 1.0)


def test_samples_are_poisson() -> None:
    names = [f"client {index}" for index in range(50)]
    found = [sampled(names, 0.2, "secret", number, 0) for number in range(400)]
    total = sum(map(len, found))
    assert stats.binomtest(total, 50 * 400, 0.2).pvalue > CERTAIN
    counts = [sum(name in one for one in found) for name in names]  # of each client, over rounds
    assert stats.chisquare(counts).pvalue > CERTAIN
    sizes = np.var([len(one) for one in found])
    assert stats.chi2.cdf(400 * sizes / (50 * 0.2 * 0.8), 399) == pytest.approx(0.5, abs=0.49999)
    assert sampled(names, 1.0, "x") == sampled(names[::-1], 1.0, "x")
    assert found[0] != sampled(names, 0.2, "another secret", 0, 0)
    assert private(seed=1).salt != private(seed=2).salt
    assert private().salt != private().salt


def test_an_audit_with_a_canary_finds_less_than_is_claimed() -> None:
    """Runs of ten rounds with and without a client whose update is as long as may be; with less noise it finds more."""
    rounds, rate, trials, delta = 10, 0.5, 1000, 1e-5
    names = [str(index) for index in range(5)]

    def scores(noise: float, *, has_canary: bool) -> Any:
        """Return a curious reader's sum over each run, of the part along the canary's update."""
        found = np.zeros(trials)
        for trial in range(trials):
            own = private(noise, rate, expected=2.5, clip=0.3, seed=2 * trial + has_canary)
            for number in range(rounds):
                total = ClippedSum(0.3, {W: np.zeros(1)})
                for name in sampled(names, rate, own.salt, number, 0):
                    if has_canary and name == "0":
                        total.add(Update({W: np.array([1e6])}, 1), 1.0)
                found[trial] += own.mean(total.result(), (number, 0))[W].item()
        return found

    def empirical(noise: float) -> float:
        """A lower bound of epsilon at 95 % by the best of some thresholds."""
        without, having = scores(noise, has_canary=False), scores(noise, has_canary=True)
        bounds = [0.0]
        for threshold in np.quantile(np.concatenate([without, having]), np.linspace(0.1, 0.9, 17)):
            wrong = stats.beta.ppf(1 - 0.025 / 17, (without > threshold).sum() + 1, (without <= threshold).sum())
            right = stats.beta.ppf(0.025 / 17, (having > threshold).sum(), (having <= threshold).sum() + 1)
            if right > delta:
                bounds.append(float(np.log((right - delta) / wrong)))
        return max(bounds)

    claim = private(2.0, rate, delta=delta)
    claim.restore({"spent": [[2.0, rate, rounds - 1]], "noise_multiplier": 2.0})
    claimed = claim.count()
    assert 0 < empirical(2.0) < claimed < 7
    assert empirical(0.25) > claimed


def test_a_budget_is_kept() -> None:
    found = private(None, rate=0.2, rounds=50, epsilon=2.0)  # type: ignore[arg-type]
    found.require(50)
    with refused(PrivacyBudgetError, name="epsilon", mentions=("51 more rounds", "ClientPrivacy(rounds=...)")):
        found.require(51)
    for _ in range(10):
        found.count()
    other = private(None, rate=0.2, rounds=500, epsilon=2.0)  # type: ignore[arg-type]
    other.restore(found.state())
    other.require(40)
    with refused(PrivacyBudgetError, name="epsilon"):
        other.require(41)


def model() -> None: ...


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"algorithm": FedAvg()}, "weighting"),
        ({"algorithm": FedAvg(most_examples=3)}, "weighting"),
        ({"algorithm": Scaffold()}, "algorithm"),
        ({"aggregator": Median(liars=1)}, "aggregator"),
        ({"participation": Participation(minimum=2)}, "minimum"),
        ({"participation": Participation(spare=0.5)}, "minimum"),
    ],
)
def test_what_privacy_does_not_go_with_is_refused(options: Any, name: str) -> None:
    given = {"algorithm": FedAvg(weighting="uniform"), "privacy": ClientPrivacy(epsilon=1, delta=1e-3), **options}
    with refused(ConfigError, name=name):
        App(model, [()] * 3, **given).rules(rounds=1, clients=3)


@pytest.mark.parametrize("name", ["epsilon", "delta", "clip", "noise_multiplier", "rounds", "seed"])
def test_settings_are_checked(name: str) -> None:
    with refused(ConfigError, name=name):
        ClientPrivacy(**{"epsilon": 1, "delta": 1e-3, name: -1})
