"""The search for the environment that describes this process: the first match in an explicit order.

    1. tfdist run    TFDIST_WORKER_INDEX, TFDIST_WORKERS
    2. TF_CONFIG     the description for TensorFlow by a person or the Kubernetes training operator
    3. horovodrun    HOROVOD_RANK, HOROVOD_SIZE
    4. Open MPI      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
    5. PMI, PMIx     PMI_RANK, PMI_SIZE; PMIX_RANK; not when srun itself provides them
    6. SageMaker     SM_HOSTS, SM_CURRENT_HOST
    7. Kubernetes    JOB_COMPLETION_INDEX, or TFDIST_K8S_WORKERS and HOSTNAME
    8. Slurm         SLURM_PROCID in a job step
    9. alone

More specific environments come first: variables for tfdist, then those for TensorFlow. horovodrun and MPI come before
the platforms, because they run inside a SageMaker job, a Kubernetes pod or a Slurm allocation. The platform's variables
then describe the hosts and not the ranks.
"""

import os
from collections.abc import Mapping

from tfdist.cluster.cluster_values import Cluster
from tfdist.cluster.environments import (
    kubernetes_environment,
    mpi_environment,
    sagemaker,
    slurm_environment,
    tf_config,
    tfdist_run,
)
from tfdist.cluster.environments.environment_variables import given
from tfdist.errors import ConfigError
from tfdist.variables import WORKERS

READERS = (
    tfdist_run.read,
    tf_config.read,
    mpi_environment.read_horovodrun,
    mpi_environment.read_open_mpi,
    mpi_environment.read_pmi,
    sagemaker.read,
    kubernetes_environment.read,
    slurm_environment.read,
)


def from_environment(environ: Mapping[str, str] | None = None) -> Cluster:
    """Return the cluster that the environment variables describe; without a description the process is alone.

    Nothing is contacted and nothing is changed; every worker of a job gets the same cluster, with its own index.

    Args:
        environ: the variables to read; by default those of this process.
    Returns:
        A valid cluster, whose ``source`` names the environment that described it.
    Raises:
        ConfigError: an environment is recognized, but its description is malformed or incomplete.

    Example:
        >>> from_environment({}).source
        'alone'
    """
    variables = os.environ if environ is None else environ
    for read in READERS:
        cluster = read(variables)
        if cluster is not None:
            return cluster
    if given(variables, WORKERS.name):
        raise ConfigError(
            f"TFDIST_WORKERS is {WORKERS.read(variables)!r}, but no variable says which of these workers this process "
            "is. Set TFDIST_WORKER_INDEX, or start with tfdist run or mpirun.",
            name=WORKERS.name,
            received=WORKERS.read(variables),
        )
    return Cluster()
