"""Updates of Keras' optimizers in other operations than Keras', under two replicas of one process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.forks import OPTIMIZED, Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.pool import WorkerPool, worker_environments

DEADLINE_SECONDS = 800
CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    given = worker_environments(os.environ, strategy="mirrored", ports=ports.free_ports(1), replicas_per_worker=2)
    # graphs are optimized, as users' are: otherwise equal operations would be enough for equal bits
    environments = [one | {"PYTHONPATH": python_path(CASES), OPTIMIZED: "1"} for one in given]
    with WorkerPool(lambda: environments, start=forking.worker) as workers:
        workers.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the process
        yield workers


def call(pool: WorkerPool, function: str, **arguments: Any) -> Any:
    (reply,) = pool.call(function, arguments, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


def test_every_replica_updates_its_copies_in_one_pass(pool: WorkerPool) -> None:
    seen = call(pool, "fused_cases:copies_of_momenta_and_weights")
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
    called, traced = call(pool, "adam_cases:bits_of_all_variables", **options)
    assert called["calls"] > traced["calls"] == 0
    assert called["calls"] % (2 * 4) == 0  # two replicas, four weights
    assert called["values"] == traced["values"]
