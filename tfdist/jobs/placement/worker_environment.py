"""Local workers without an agent, like those of `tfdist run`: their environment variables, and sessions in a pool."""

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster import job_key
from tfdist.cluster.ports import free_ports
from tfdist.jobs.placement.local_placement import LOOPBACK
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.processes.pool.worker_pool import Start, WorkerPool
from tfdist.variables import ERROR_FILE, PREFIX

# variables of other launchers, or of an outer run
_FOREIGN = ("TF_CONFIG", PREFIX, "SLURM_", "OMPI_", "PMIX_", "PMI_", "HOROVOD_", "SM_", "JOB_COMPLETION_INDEX")
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    # several workers share the machine: one thread each for a kernel, so that they do not fight over cores
    "TF_NUM_INTRAOP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


def worker_environments(
    base: Mapping[str, str],
    *,
    strategy: str | None,
    ports: Sequence[int],
    replicas_per_worker: int,
    hosts: Sequence[str] | None = None,
) -> list[dict[str, str]]:
    """Return one environment per port: worker i of ``len(ports)`` local workers, on CPU devices.

    Args:
        base: the variables to start from; those of other launchers are left out.
        strategy: the registered name for ``TFDIST_STRATEGY``, or None.
        ports: a free loopback port for each worker.
        replicas_per_worker: the number of replicas in each process, at least 1.
        hosts: the host of each worker, as the others reach it; by default the loopback interface.

    Example:
        >>> one, two = worker_environments({}, strategy="multi-worker", ports=[7001, 7002], replicas_per_worker=1)
        >>> two["TFDIST_WORKERS"], two["TFDIST_WORKER_INDEX"]
        ('127.0.0.1:7001,127.0.0.1:7002', '1')
    """
    config = LaunchConfig(
        target="tfdist.processes.pool.pool_worker",
        is_module=True,
        workers=len(ports),
        strategy=strategy,
        replicas_per_worker=replicas_per_worker,
    )
    specs = plan(
        config,
        addresses=list(zip(hosts or [LOOPBACK] * len(ports), ports, strict=True)),
        job_id=uuid.uuid4().hex,
        directory=Path(os.devnull),
        python=sys.executable,
        agent_pid=os.getpid(),
        key=job_key.drawn(),
    )
    environments = [spec.environ(shared_environment(base)) for spec in specs]
    for environment in environments:
        del environment[ERROR_FILE.name]  # a pool's workers report over their pipes
    return environments


def shared_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the part of `worker_environments` that all workers share."""
    return {**{name: value for name, value in base.items() if not name.startswith(_FOREIGN)}, **_QUIET}


class WorkerSession:
    """Workers of a strategy, or of none, in a pool that the first call starts; ``hosts`` are loopback by default."""

    def __init__(
        self,
        strategy: str | None,
        *,
        workers: int,
        replicas_per_worker: int = 1,
        hosts: Sequence[str] | None = None,
        start: Start | None = None,
    ) -> None:
        self.workers = workers
        self.pool = WorkerPool(self.environments, start)
        self._strategy = strategy
        self._replicas_per_worker = replicas_per_worker
        self._hosts = hosts

    def environments(self) -> list[dict[str, str]]:
        return worker_environments(
            os.environ,
            strategy=self._strategy,
            ports=free_ports(self.workers),
            replicas_per_worker=self._replicas_per_worker,
            hosts=self._hosts,
        )
