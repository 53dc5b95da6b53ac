"""The pods of a job on Kubernetes, as one of them sees them."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster import job_key
from tfdist.cluster.environments.kubernetes_environment import PORT, read
from tfdist.errors import ConfigError
from tfdist.jobs.plan.host_plan import Host
from tfdist.variables import JOB_KEY, K8S_SERVICE


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of a job, as it sees itself.

    Attributes:
        index: which of them it is.
        hosts: all of them, in their order.
        rendezvous: where they join.
    """

    index: int
    hosts: tuple[Host, ...]
    rendezvous: str

    @property
    def host(self) -> Host:
        """This one."""
        return self.hosts[self.index]


def pod_of(environ: Mapping[str, str]) -> Pod | None:
    """Return which pod of a job this is; None outside of one that `tfdist run` has submitted.

    Example:
        >>> variables = {"HOSTNAME": "t-1", "JOB_COMPLETION_INDEX": "1", "TFDIST_K8S_WORKERS": "2",
        ...              "TFDIST_K8S_SERVICE": "t", "TFDIST_JOB_KEY": "0" * 64}
        >>> pod = pod_of(variables)
        >>> pod.host.name, pod.host.address, pod.rendezvous
        ('t-1', 't-1.t', 't-0.t:2222')
    """
    if not all(environ.get(name) for name in ("JOB_COMPLETION_INDEX", K8S_SERVICE.name)):
        return None
    cluster = read(environ)
    assert cluster is not None
    if job_key.from_environment(environ) is None:
        raise ConfigError(f"{JOB_KEY.name} is not set in this pod; the Secret of the job has it.", name=JOB_KEY.name)
    if cluster.num_workers == 1:
        name = re.sub(r"\..*", "", environ.get("HOSTNAME") or socket.gethostname())
        return Pod(index=0, hosts=(Host(name=name, address=name),), rendezvous=f"{name}:{PORT}")
    addresses = [address.rpartition(":")[0] for address in cluster.addresses]
    hosts = tuple(Host(name=address.partition(".")[0], address=address) for address in addresses)
    return Pod(index=cluster.worker_index, hosts=hosts, rendezvous=cluster.addresses[0])
