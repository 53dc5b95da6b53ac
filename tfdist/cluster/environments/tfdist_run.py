"""The environment that ``tfdist run`` gives each of its workers."""

from tfdist.cluster.cluster_values import Cluster, distinct_addresses, position_on_host
from tfdist.cluster.environments.environment_variables import (
    Environ,
    given,
    optional_integer,
    required,
    required_integer,
)
from tfdist.variables import JOB_ID, LOCAL_INDEX, LOCAL_WORKERS, WORKER_INDEX, WORKERS

_HINT = "tfdist run sets TFDIST_WORKERS and TFDIST_WORKER_INDEX together: set both, or neither."


def read(environ: Environ) -> Cluster | None:
    """Return the cluster of ``tfdist run``; None if it did not start this process.

    TFDIST_WORKERS without TFDIST_WORKER_INDEX only supplies addresses to an environment that has ranks (MPI).
    """
    if not given(environ, WORKER_INDEX.name):
        return None
    listed = required(environ, WORKERS.name, because="TFDIST_WORKER_INDEX is set", hint=_HINT)
    addresses = addresses_from(listed)
    index = required_integer(
        environ,
        WORKER_INDEX.name,
        because="TFDIST_WORKERS is set",
        maximum=len(addresses) - 1,
        hint=f"TFDIST_WORKERS has {len(addresses)} addresses, {listed!r}.",
    )
    local_index, local_workers = position_on_host(addresses, index)
    local_workers = optional_integer(
        environ, LOCAL_WORKERS.name, default=local_workers, minimum=1, maximum=len(addresses)
    )
    return Cluster(
        num_workers=len(addresses),
        worker_index=index,
        local_index=optional_integer(environ, LOCAL_INDEX.name, default=local_index, maximum=local_workers - 1),
        local_workers=local_workers,
        addresses=addresses,
        source="tfdist run",
        job_id=JOB_ID.read(environ) or None,
    )


def addresses_from(listed: str) -> tuple[str, ...]:
    """Return the addresses in the text of TFDIST_WORKERS: host:port, separated by commas."""
    return distinct_addresses(WORKERS.name, [entry.strip() for entry in listed.split(",")])
