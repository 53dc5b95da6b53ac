"""Updates of Keras' optimizers in other operations than Keras', under two replicas of one process."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.integration.case_pools import call_one, start
from tests.integration.forks import OPTIMIZED, Forks
from tfdist.testing.pool import WorkerPool


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    # graphs are optimized, as users' are: otherwise equal operations would be enough for equal bits
    with start(forking, "mirrored", replicas=2, **{OPTIMIZED: "1"}) as workers:
        yield workers


def test_every_replica_updates_its_copies_in_one_pass(pool: WorkerPool) -> None:
    seen = call_one(pool, "copies_of_momenta_and_weights", of="fused_cases")
    assert seen["traced"] >= 2 * 4  # two replicas, four weights
    for copies, one in zip(seen["copies"], seen["one"], strict=True):
        assert copies[0] == copies[1]
        np.testing.assert_allclose(copies[0], one, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "float64", "amsgrad": True, "epsilon": 0.01, "weight_decay": 0.1, "use_ema": True},
    ],
)
def test_adam_is_a_call_for_each_variable_with_the_same_bits(pool: WorkerPool, options: dict[str, Any]) -> None:
    called, traced = call_one(pool, "bits_of_all_variables", of="adam_cases", **options)
    assert called["calls"] > traced["calls"] == 0
    assert called["calls"] % (2 * 4) == 0  # two replicas, four weights
    assert called["values"] == traced["values"]
