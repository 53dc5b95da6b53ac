"""Amazon SageMaker training jobs: one worker per host, from SM_HOSTS and SM_CURRENT_HOST."""

import json

from tfdist.cluster.cluster_values import Cluster
from tfdist.cluster.environments.environment_variables import Environ, given, port, required
from tfdist.errors import ConfigError
from tfdist.validation import shown

_DEFAULT_PORT = 8890


def read(environ: Environ) -> Cluster | None:
    """Return the cluster of a SageMaker training job; None outside of one.

    Every host runs one worker, which listens at TFDIST_PORT (8890 by default), in the order of SM_HOSTS.
    """
    if not given(environ, "SM_HOSTS"):
        return None
    hosts = _hosts(environ["SM_HOSTS"])
    current = required(
        environ, "SM_CURRENT_HOST", because="SM_HOSTS is set", hint=f"Set it to one of {', '.join(hosts)}."
    )
    if current not in hosts:
        raise ConfigError(
            f"SM_CURRENT_HOST is {current!r}; it must be one of SM_HOSTS, {environ['SM_HOSTS']}.",
            name="SM_CURRENT_HOST",
            received=current,
        )
    chosen = port(environ, default=_DEFAULT_PORT)
    return Cluster(
        num_workers=len(hosts),
        worker_index=hosts.index(current),
        addresses=tuple(f"{host}:{chosen}" for host in hosts),
        source="SageMaker",
        job_id=environ.get("TRAINING_JOB_NAME") or None,
    )


def _hosts(raw: str) -> list[str]:
    try:
        hosts = json.loads(raw)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(
            f'SM_HOSTS is {shown(raw)}, which is not JSON ({error}); write it as ["algo-1", "algo-2"].',
            name="SM_HOSTS",
            received=raw,
        ) from None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) and host.strip() for host in hosts):
        raise ConfigError(
            f'SM_HOSTS is {shown(raw)}; it must be a JSON list of host names, such as ["algo-1", "algo-2"].',
            name="SM_HOSTS",
            received=raw,
        )
    repeated = sorted({host for host in hosts if hosts.count(host) > 1})
    if repeated:
        raise ConfigError(
            f"SM_HOSTS is {shown(raw)}; {', '.join(repeated)} occurs twice. Name each host once.",
            name="SM_HOSTS",
            received=raw,
        )
    return hosts
