"""A client of a federation that trains on two devices."""

import os
from pathlib import Path

import pytest

from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.pool import WorkerPool, worker_environments

DEADLINE_SECONDS = 800
CASES = Path(__file__).parent / "cases"


def test_a_client_with_two_devices_is_a_mirrored_job_with_the_weights_of_one(forking: Forks) -> None:
    def environments() -> list[dict[str, str]]:
        made = worker_environments(os.environ, strategy="mirrored", ports=ports.free_ports(1), replicas_per_worker=1)
        return [one | {"PYTHONPATH": python_path(CASES)} for one in made]

    with WorkerPool(environments, start=forking.worker) as pool:
        for function in ("two_devices", "distance_to_one_device"):
            reply = pool.call(f"federated_cases:{function}", {}, timeout_seconds=DEADLINE_SECONDS)[0]
            assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    assert reply.value["replicas"] == 2
    assert reply.value["weights"] < 1e-5
    assert reply.value["losses"][0] == pytest.approx(reply.value["losses"][1], abs=1e-5)
