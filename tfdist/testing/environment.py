"""The variables with which workers on this machine are started, as `tfdist run` sets them."""

import json
from collections.abc import Mapping, Sequence

# what another launcher, or a run around this one, may have left in the environment
_FOREIGN = (
    "TF_CONFIG",
    "TFDIST_",
    "SLURM_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "SM_",
    "JOB_COMPLETION_INDEX",
    "CUDA_VISIBLE_DEVICES",
)
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    # several workers share the machine: one thread each for a kernel, so that they do not fight over cores
    "TF_NUM_INTRAOP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def worker_environments(
    base: Mapping[str, str], *, strategy: str | None, ports: Sequence[int], replicas_per_worker: int
) -> list[dict[str, str]]:
    """Return one environment per port: worker i of ``len(ports)`` local workers, on CPU devices.

    Args:
        base: variables to start from; those of other launchers are left out.
        strategy: registered name for ``TFDIST_STRATEGY``, or None.
        ports: a free loopback port for each worker.
        replicas_per_worker: replicas in each process, at least 1.

    Example:
        >>> one, two = worker_environments({}, strategy="multi-worker", ports=[7001, 7002], replicas_per_worker=1)
        >>> two["TFDIST_WORKERS"], two["TFDIST_WORKER_INDEX"]
        ('127.0.0.1:7001,127.0.0.1:7002', '1')
    """
    addresses = [f"127.0.0.1:{port}" for port in ports]
    common = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)} | _QUIET
    common["TFDIST_REPLICAS_PER_WORKER"] = str(replicas_per_worker)
    if strategy is not None:
        common["TFDIST_STRATEGY"] = strategy
    if len(addresses) > 1:
        common["TFDIST_WORKERS"] = ",".join(addresses)
        common["TFDIST_LOCAL_WORKERS"] = str(len(addresses))
    return [common | (_place(addresses, index) if len(addresses) > 1 else {}) for index in range(len(addresses))]


def _place(addresses: list[str], index: int) -> dict[str, str]:
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {
        "TFDIST_WORKER_INDEX": str(index),
        "TFDIST_LOCAL_INDEX": str(index),
        "TF_CONFIG": json.dumps(task),
    }
