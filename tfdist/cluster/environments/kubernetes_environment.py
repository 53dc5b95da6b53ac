"""Kubernetes without an operator: an indexed Job or a StatefulSet, with a headless service for the names of its pods.

Set in the pod template:
    TFDIST_K8S_WORKERS  number of pods that train together: the Job's completions (equal to its parallelism), or the
                        StatefulSet's replicas
    TFDIST_K8S_SERVICE  name of the headless service (the pod's subdomain)
    TFDIST_PORT         port at which each worker listens; 2222 by default
Kubernetes itself sets JOB_COMPLETION_INDEX (indexed Job) and HOSTNAME (name-index in both). Kubeflow's Trainer v2 has
no policy for TensorFlow. Its policy for JAX gives the number of pods (JAX_NUM_PROCESSES) and the first pod
(JAX_COORDINATOR_ADDRESS, whose domain is the service). They are used if tfdist's variables are not set.
"""

import re

from tfdist.cluster.cluster_values import Cluster
from tfdist.cluster.environments.environment_variables import Environ, given, port, required, required_integer
from tfdist.errors import ConfigError
from tfdist.variables import K8S_SERVICE, K8S_WORKERS

PORT = 2222  # each pod has an address of its own, so all have the same

_JAX_WORKERS, _JAX_FIRST = "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"
_WORKERS_HINT = (
    "Set it in the pod template to the number of pods that train together (the Job's completions, the StatefulSet's"
    " replicas); 1 when every pod trains alone."
)
_SERVICE_HINT = "Set it in the pod template to the headless service that gives the pods their names (their subdomain)."
_HOSTNAME = re.compile(r"(?P<name>.+)-(?P<index>\d{1,9})")


def read(environ: Environ) -> Cluster | None:
    """Return the cluster of an indexed Job or a StatefulSet; None if the process is in neither."""
    completion = given(environ, "JOB_COMPLETION_INDEX")
    if not completion and not given(environ, K8S_WORKERS.name, K8S_SERVICE.name):
        return None
    if completion:
        environ = _with_those_of_jax(environ)
    why = "JOB_COMPLETION_INDEX is set (an indexed Job)" if completion else "TFDIST_K8S_SERVICE is set"
    workers = required_integer(environ, K8S_WORKERS.name, because=why, hint=_WORKERS_HINT, minimum=1)
    kind = "Kubernetes indexed Job" if completion else "Kubernetes StatefulSet"
    if workers == 1:
        return Cluster(source=kind)
    name, ordinal = _pod(environ)
    index = ordinal
    if completion:
        index = required_integer(
            environ, "JOB_COMPLETION_INDEX", because="this is a Job", maximum=workers - 1, hint=_size(workers)
        )
        if index != ordinal:
            raise ConfigError(
                f"JOB_COMPLETION_INDEX is {index}, but HOSTNAME is {environ['HOSTNAME']!r}; the pod of an indexed Job "
                "is named job-index. Leave the pod's hostname as Kubernetes sets it.",
                name="JOB_COMPLETION_INDEX",
                received=index,
            )
    elif index >= workers:
        raise ConfigError(
            f"HOSTNAME is {environ['HOSTNAME']!r}, which is pod {index}; its index must be from 0 to {workers - 1}."
            f" {_size(workers)} Let the StatefulSet's ordinals start at 0.",
            name="HOSTNAME",
            received=environ["HOSTNAME"],
        )
    service = required(environ, K8S_SERVICE.name, because="TFDIST_K8S_WORKERS is above 1", hint=_SERVICE_HINT)
    chosen = port(environ, default=PORT)
    return Cluster(
        num_workers=workers,
        worker_index=index,
        addresses=tuple(f"{name}-{i}.{service}:{chosen}" for i in range(workers)),
        source=kind,
        job_id=name,
    )


def _with_those_of_jax(environ: Environ) -> Environ:
    """Return the variables, completed by those of Trainer's policy for JAX."""
    found = dict(environ)
    if not given(found, K8S_WORKERS.name) and given(found, _JAX_WORKERS):
        found[K8S_WORKERS.name] = found[_JAX_WORKERS]
    if not given(found, K8S_SERVICE.name) and given(found, _JAX_FIRST):
        found[K8S_SERVICE.name] = found[_JAX_FIRST].strip().partition(":")[0].partition(".")[2]
    return found


def _size(workers: int) -> str:
    return f"TFDIST_K8S_WORKERS is {workers}; it must be the number of pods."


def _pod(environ: Environ) -> tuple[str, int]:
    """Return the name and the index in HOSTNAME, which may have the service as its domain."""
    hint = "Kubernetes sets it to the pod's name."
    hostname = required(environ, "HOSTNAME", because="TFDIST_K8S_WORKERS is above 1", hint=hint)
    found = _HOSTNAME.fullmatch(hostname.partition(".")[0])
    if not found:
        raise ConfigError(
            f"HOSTNAME is {hostname!r}; it must end in -INDEX, as the pods of a StatefulSet or an indexed Job do."
            " Use one of these two, or set TF_CONFIG.",
            name="HOSTNAME",
            received=hostname,
        )
    return found["name"], int(found["index"])
