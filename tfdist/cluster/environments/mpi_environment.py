"""Processes that an MPI launcher started: Open MPI, and any that supports PMIx or PMI (MPICH, Intel MPI).

These launchers give ranks but no addresses. Horovod needs none. For strategies whose workers connect to each other, set
    TFDIST_WORKERS      host:port of every rank, in the order of the ranks, separated by commas; or
    TFDIST_COORDINATOR  host:port of rank 0, enough when all ranks are on one host: rank i listens at port + i.
"""

from tfdist.cluster.cluster_values import Cluster, position_on_host, split_address
from tfdist.cluster.environments.environment_variables import Environ, given, optional_integer, required_integer
from tfdist.cluster.environments.slurm_environment import task_count
from tfdist.cluster.environments.tfdist_run import addresses_from
from tfdist.errors import ConfigError
from tfdist.variables import COORDINATOR, JOB_ID, NUM_WORKERS, WORKERS

_HINT = "The MPI launcher sets it for every rank: start with mpirun, or unset the variables that it left behind."
_RUN_HINT = "horovodrun sets it for every rank: start with horovodrun, or unset the variables that it left behind."


def read_open_mpi(environ: Environ) -> Cluster | None:
    """Return the cluster of Open MPI's ``mpirun``; None if it did not start this process."""
    if not given(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        return None
    return _cluster(environ, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _OPEN_MPI_LOCAL)


def read_pmi(environ: Environ) -> Cluster | None:
    """Return the cluster of a launcher that supports PMIx or PMI; None if there is none.

    ``srun`` supports them too. If its own rank and size agree, srun started this process, and the result is None,
    because Slurm's variables also have addresses. PMIx has no size, so TFDIST_NUM_WORKERS is needed.
    """
    if given(environ, "PMI_RANK"):
        rank, size = "PMI_RANK", "PMI_SIZE"
    elif given(environ, "PMIX_RANK"):
        rank, size = "PMIX_RANK", NUM_WORKERS.name
    else:
        return None
    if _from_srun(environ, rank, size):
        return None
    return _cluster(environ, "PMI" if rank == "PMI_RANK" else "PMIx", rank, size, _PMI_LOCAL)


_OPEN_MPI_LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_PMI_LOCAL = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_HOROVOD_LOCAL = ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")


def _from_srun(environ: Environ, rank: str, size: str) -> bool:
    if not given(environ, "SLURM_PROCID") or not given(environ, "SLURM_STEP_ID", "SLURM_STEP_NODELIST"):
        return False
    same_rank = environ["SLURM_PROCID"].strip() == environ[rank].strip()
    return same_rank and (not given(environ, size) or environ[size].strip() == str(task_count(environ)))


def _cluster(
    environ: Environ, source: str, rank: str, size: str, local: tuple[str, str], *, hint: str = _HINT
) -> Cluster:
    how = hint if size != NUM_WORKERS.name else "PMIx has ranks only: set it to the number of ranks."
    workers = required_integer(environ, size, because=f"{rank} is set", hint=how, minimum=1)
    index = required_integer(environ, rank, because=f"{size} is set", hint=hint, maximum=workers - 1)
    local_told = given(environ, *local)
    local_workers = optional_integer(environ, local[1], default=1, minimum=1, maximum=workers)
    local_index = optional_integer(environ, local[0], default=0, maximum=local_workers - 1)
    addresses = addresses_of_ranks(environ, workers, one_host=local_workers == workers or not local_told)
    if addresses and not local_told:
        local_index, local_workers = position_on_host(addresses, index)
    return Cluster(
        num_workers=workers,
        worker_index=index,
        local_index=local_index,
        local_workers=local_workers,
        addresses=addresses,
        source=source,
        job_id=JOB_ID.read(environ) or None,
    )


def addresses_of_ranks(environ: Environ, workers: int, *, one_host: bool) -> tuple[str, ...]:
    """Return the addresses in TFDIST_WORKERS or TFDIST_COORDINATOR for a launcher's ranks; the tuple may be empty."""
    if given(environ, WORKERS.name):
        addresses = addresses_from(WORKERS.read(environ))
        if len(addresses) != workers:
            raise ConfigError(
                f"TFDIST_WORKERS is {WORKERS.read(environ)!r}, {len(addresses)} addresses, but there are {workers} "
                "ranks; give one address per rank, in the order of the ranks.",
                name=WORKERS.name,
                received=WORKERS.read(environ),
            )
        return addresses
    if not given(environ, COORDINATOR.name) or workers == 1:
        return ()
    coordinator = COORDINATOR.read(environ).strip()
    host, first = split_address(COORDINATOR.name, coordinator)
    if not one_host:
        raise ConfigError(
            f"TFDIST_COORDINATOR is {coordinator!r}, but the {workers} ranks are on several hosts; it names one host "
            "only. Set TFDIST_WORKERS to the host:port of every rank, in the order of the ranks.",
            name=COORDINATOR.name,
            received=coordinator,
        )
    if first + workers - 1 > 65535:
        raise ConfigError(
            f"TFDIST_COORDINATOR is {coordinator!r}; port + {workers - 1} must not pass 65535. Use a lower port.",
            name=COORDINATOR.name,
            received=coordinator,
        )
    written = f"[{host}]" if ":" in host else host
    return tuple(f"{written}:{first + i}" for i in range(workers))


def read_horovodrun(environ: Environ) -> Cluster | None:
    """Return the cluster of ``horovodrun`` over gloo, also from Spark and Ray; None if it did not start this process.

    horovodrun connects the ranks itself, so the cluster has no addresses: the ring strategy needs none, others do.
    ``horovodrun --mpi`` uses ``mpirun``, and is read as such.
    """
    if not given(environ, "HOROVOD_RANK", "HOROVOD_SIZE"):
        return None
    return _cluster(environ, "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", _HOROVOD_LOCAL, hint=_RUN_HINT)
