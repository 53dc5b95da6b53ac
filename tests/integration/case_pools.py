"""Pools of forked workers that run the functions of `cases/`, for all test files that need some."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.jobs.placement.local_placement import LOOPBACK
from tfdist.testing.pool import Reply, WorkerPool, worker_environments
from tfdist.variables import REPLICAS_PER_WORKER

DEADLINE_SECONDS = 800
CASES = Path(__file__).parent / "cases"


def start(
    forking: Forks,
    strategy: str | None,
    workers: int = 1,
    *,
    replicas: int | None = 1,
    host: str = LOOPBACK,
    kind: type[WorkerPool] = WorkerPool,
    **variables: str,
) -> WorkerPool:
    """Start the workers of a strategy, or of none; with replicas None, no variable says how many each has."""

    def environments() -> list[dict[str, str]]:
        free = ports.free_ports(workers)
        hosts, per_worker = [host] * workers, replicas or 1
        made = worker_environments(
            os.environ, strategy=strategy, ports=free, replicas_per_worker=per_worker, hosts=hosts
        )
        for one in made if replicas is None else ():
            del one[REPLICAS_PER_WORKER.name]
        return [one | {"PYTHONPATH": python_path(CASES), **variables} for one in made]

    pool = kind(environments, start=forking.worker)
    pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the processes
    return pool


def call(pool: WorkerPool, function: str, /, *, of: str, **arguments: Any) -> list[Any]:
    """Return what a function of some cases returns on each worker; the test fails with the first failure."""
    return returned(pool.call(f"{of}:{function}", arguments, timeout_seconds=DEADLINE_SECONDS))


def call_one(pool: WorkerPool, function: str, /, *, of: str, **arguments: Any) -> Any:
    """Return what a function of some cases returns in a pool of one process."""
    (value,) = call(pool, function, of=of, **arguments)
    return value


def returned(replies: Sequence[Reply]) -> list[Any]:
    """Return the value of each reply; fail with the first failure, which is the cause of others."""
    for reply in sorted(replies, key=lambda reply: reply.seconds):
        assert reply.status == "returned", f"worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}"
    return [reply.value for reply in replies]
