"""A pool of real worker processes that run functions together and under a deadline.

Example:
    >>> def environments() -> list[dict[str, str]]:
    ...     return worker_environments(
    ...         os.environ, strategy="multi-worker", ports=free_ports(2), replicas_per_worker=1
    ...     )
    >>> with WorkerPool(environments) as pool:                        # doctest: +SKIP
    ...     replies = pool.call("mypackage.steps:train", {"steps": 3}, timeout_seconds=60)
    >>> [reply.status for reply in replies]                           # doctest: +SKIP
    ['returned', 'returned']
"""

from tfdist.jobs.placement.worker_environment import worker_environments
from tfdist.processes.pool.worker_pool import Reply, WorkerPool

__all__ = ["Reply", "WorkerPool", "worker_environments"]
