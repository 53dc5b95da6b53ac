"""Differentially private training, on one device and over replicas."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import case_pools
from tests.integration.case_pools import start
from tests.integration.forks import Forks
from tfdist.cluster import job_key
from tfdist.testing.pool import WorkerPool
from tfdist.variables import JOB_KEY

call = functools.partial(case_pools.call_one, of="privacy_cases")
release = pytest.mark.release  # one more number of replicas, or collective, of what others cover
KINDS = [
    *("dense", "activity", "pictures", "depthwise", "transposed", "sequence", "recurrent", "attention"),
    *("words", "bag", "two inputs", "frozen"),
]


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, "mirrored", KIND="mirrored") as one:
        call(one, "four_devices")
        yield one


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_a_loop_over_batches_of_one(pool: WorkerPool, kind: str) -> None:
    seen = call(pool, "gradients_of", kind=kind)
    assert seen["clipped"] < 2e-6
    assert seen["free"] < 2e-6
    assert seen["longest"] <= 1 + 1e-6


def test_each_example_and_step_has_a_dropout_mask_of_its_own(pool: WorkerPool) -> None:
    *outputs, between_steps = call(pool, "masks_of_examples")
    assert len(set(outputs)) == len(outputs)
    assert between_steps > 0


@pytest.fixture(scope="module")
def alone(pool: WorkerPool) -> Any:
    return call(pool, "trained", replicas=1)


def same(seen: Any, wanted: Any) -> None:
    for a, b in zip(seen["weights"], wanted["weights"], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert seen["history"]["epsilon"] == wanted["history"]["epsilon"]
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(seen["history"][name], wanted["history"][name], atol=1e-5)


@pytest.mark.parametrize("replicas", [pytest.param(2, marks=release), 3])
def test_replicas_train_to_the_weights_of_one_device_noise_included(
    pool: WorkerPool, alone: Any, replicas: int
) -> None:
    same(call(pool, "trained", replicas=replicas), alone)
    assert alone["history"]["epsilon"][0] < alone["history"]["epsilon"][1] <= 8.0
    assert alone["history"]["epsilon"][1] > 7.9


@pytest.mark.parametrize("strategy", ["multi-worker", pytest.param("ring", marks=release)])
def test_workers_train_to_the_weights_of_one_device_noise_included(forking: Forks, alone: Any, strategy: str) -> None:
    with start(forking, strategy, 2, KIND=strategy, **{JOB_KEY.name: job_key.drawn()}) as workers:
        same(case_pools.call(workers, "trained", of="privacy_cases", replicas=0)[0], alone)
        kind = "RingStrategy" if strategy == "ring" else "MultiWorkerMirroredStrategy"
        assert case_pools.call(workers, "workers_that_meet_seldom", of="privacy_cases") == [kind] * 2
        (first, second), others = case_pools.call(workers, "secret_samples", of="privacy_cases")
        assert [first, second] == others
        assert first != second


def test_replicas_without_examples_and_empty_batches_count_for_nothing(pool: WorkerPool) -> None:
    same(call(pool, "trained", replicas=4, size=1), call(pool, "trained", replicas=1, size=1))


@pytest.mark.parametrize("replicas", [1, 3, *(pytest.param(count, marks=release) for count in (2, 4))])
def test_the_noise_of_the_sum_has_one_variance(pool: WorkerPool, replicas: int) -> None:
    mean, square, count = call(pool, "noise_of", replicas=replicas)
    assert abs(mean) < 4 / count**0.5
    assert abs(square - 1) < 4 * (2 / count) ** 0.5


def test_an_empty_batch_adds_noise(pool: WorkerPool) -> None:
    seen = call(pool, "empty_steps")
    assert 0 in seen["sizes"]
    assert len(seen["moved"]) == len(seen["sizes"])
    assert all(seen["moved"])
    assert np.isfinite(seen["loss"])


def test_an_example_that_overflows_in_float16_counts_as_zero(pool: WorkerPool) -> None:
    seen = call(pool, "in_float16")
    assert seen["apart"] == 0
    assert 0 < seen["moved"] < 10
    assert seen["updates"] == 1  # skipping it would tell of the example


def test_accumulated_gradients_are_those_of_noisy_steps(pool: WorkerPool) -> None:
    two = call(pool, "trained", replicas=2, gradient_accumulation_steps=2)
    same(two, call(pool, "trained", replicas=1, gradient_accumulation_steps=2))


def test_a_resumed_training_remembers_what_it_has_spent(pool: WorkerPool, tmp_path: Path) -> None:
    seen = call(pool, "resumed", folder=str(tmp_path / "backup"))
    assert seen["apart"] == 0
    assert seen["resumed"] == seen["epsilon"]
    assert seen["steps"] == 15 - 8 + 1


def test_samples_have_each_example_by_itself(pool: WorkerPool, tmp_path: Path) -> None:
    """400 samples at rate 0.2: counts are binomial, and pairs of examples meet as if they were independent."""
    seen = call(pool, "samples", folder=str(tmp_path / "data"))
    there = np.zeros((400, 30))
    for batch, row in zip(seen["batches"], there, strict=True):
        row[batch] = 1
    counts, sizes = there.sum(axis=0), there.sum(axis=1)
    assert np.sum((counts - 80) ** 2 / 64) < 30 + 5 * 60**0.5  # chi-square of 30 binomials
    assert abs(np.var(sizes) - 4.8) < 4 * 4.8 * (2 / 400) ** 0.5
    together = (there.T @ there)[np.triu_indices(30, 1)]
    assert abs(together.mean() - 16) < 2
    assert np.abs(together - 16).max() < 5.5 * (400 * 0.04 * 0.96) ** 0.5
    assert seen["again"] == seen["batches"][:5] != seen["other"]
    assert seen["batches"][:5] != seen["batches"][5:10]
    assert seen["rate"] == 0.1
    assert all(x == y for x, y in seen["read"])
    assert len({tuple(y) for _, y in seen["read"]}) > 20


def test_what_would_not_be_private_is_refused_by_name(pool: WorkerPool) -> None:
    assert call(pool, "refusals") == {
        "arrays": "x",
        "dataset": "x",
        "normalization": "norm",
        "state": "seen",
        "loss": "circle",
        "optimizer": "reducing",
        "jit": "jit_compile",
        "batch": "train_on_batch",
    }
