"""Lanes of a benchmark: worker processes that run in turns with those of other lanes."""

import os
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import ports
from tfdist.errors import MissingDependencyError, TfdistError
from tfdist.testing.environment import worker_environments
from tfdist.testing.pool import WorkerPool

__all__ = ["call", "lane"]

_CALL_SECONDS = 1800.0


def lane(strategy: str | None, *, workers: int, replicas_per_worker: int = 1) -> WorkerPool:
    """Return worker processes for a strategy, which start when they are called first.

    Args:
        strategy: registered name; None where no strategy of tfdist's is made.
        workers: number of processes.
        replicas_per_worker: replicas in each.
    """
    return WorkerPool(
        lambda: worker_environments(
            os.environ, strategy=strategy, ports=ports.free_ports(workers), replicas_per_worker=replicas_per_worker
        )
    )


def call(pool: WorkerPool, target: str, **arguments: Any) -> list[Any]:
    """Run ``module:function`` on every worker of a lane and return what each returned.

    Raises:
        MissingDependencyError: a worker lacks a package.
        TfdistError: a worker failed; the message has its traceback.
    """
    replies = pool.call(target, _json(arguments), timeout_seconds=_CALL_SECONDS)
    for reply in sorted(replies, key=lambda reply: reply.seconds):
        if MissingDependencyError.__name__ in reply.types:
            raise MissingDependencyError(reply.message)
        if reply.status != "returned":
            raise TfdistError(f"worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}")
    return [reply.value for reply in replies]


def _json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items()}
