"""Processes that Horovod's launcher started over gloo: ``horovodrun``, and what uses it (Spark, Ray).

It brings the ranks together itself, so the cluster has no addresses: the ring strategy needs none, others do.
``horovodrun --mpi`` starts ranks by ``mpirun``, which is read as such.
"""

from tfdist.cluster.cluster_values import Cluster
from tfdist.cluster.environments.environment_variables import Environ, given, optional_integer, required_integer
from tfdist.cluster.environments.mpi_environment import addresses_of_ranks
from tfdist.variables import JOB_ID

_HINT = "horovodrun sets it for every rank: start with horovodrun, or unset the variables that it left behind."


def read(environ: Environ) -> Cluster | None:
    """Return the cluster that ``horovodrun`` described, or None when it did not start this process.

    Example:
        >>> read({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}).worker_index
        1
    """
    if not given(environ, "HOROVOD_RANK", "HOROVOD_SIZE"):
        return None
    workers = required_integer(environ, "HOROVOD_SIZE", because="HOROVOD_RANK is set", hint=_HINT, minimum=1)
    index = required_integer(environ, "HOROVOD_RANK", because="HOROVOD_SIZE is set", hint=_HINT, maximum=workers - 1)
    local_workers = optional_integer(environ, "HOROVOD_LOCAL_SIZE", default=1, minimum=1, maximum=workers)
    return Cluster(
        num_workers=workers,
        worker_index=index,
        local_index=optional_integer(environ, "HOROVOD_LOCAL_RANK", default=0, maximum=local_workers - 1),
        local_workers=local_workers,
        addresses=addresses_of_ranks(environ, workers, one_host=local_workers == workers),
        source="horovodrun",
        job_id=JOB_ID.read(environ) or None,
    )
