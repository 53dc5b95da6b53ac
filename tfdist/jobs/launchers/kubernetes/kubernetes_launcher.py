"""The launcher `kubernetes`: one pod for each process of the job.

Every pod runs the same command. The first pod has the launcher and an agent, the others an agent. Agents stay when a
job has ended: if the first pod is replaced, its next launcher finds them. When it has succeeded, Kubernetes ends them.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tfdist.cluster import job_key
from tfdist.cluster.environments.kubernetes_environment import PORT, read
from tfdist.errors import ConfigError, DeadlineError
from tfdist.jobs.connecting.tcp_joining import Ticket
from tfdist.jobs.launchers import joined_agent
from tfdist.jobs.launchers.kubernetes import pod_outputs
from tfdist.jobs.launchers.launcher import Launcher, joining_key
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.variables import JOB_KEY, K8S_SERVICE, POD_PREFIX
from tfdist.waiting import end_process

_NAME_SECONDS = 300.0  # for the name of a new pod to come to where names are kept
_NAME_AGAIN_SECONDS = 0.5
_LAUNCHER_SECONDS = 3600.0  # until the first pod has come up, which may wait for a node
_END_SECONDS = 10.0


class KubernetesLauncher(Launcher):
    """A launcher that lets the pods of a job join each other; outside of a pod, it submits the job."""

    name = "kubernetes"
    without_hosts = "makes one pod for each process"
    removed = ("JOB_COMPLETION_INDEX", POD_PREFIX, "JAX_")
    accepts = frozenset({"cpus", "gpus", "memory"})
    assigns_gpus = True
    submits = True
    passes_sigterm_on = True
    join_seconds = 3600.0  # a pod may wait for a node
    adds_workers = "within the pods"
    notice = "SIGTERM to a pod"

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        pod = pod_of(environ)
        return () if pod is None else pod.hosts

    def complete(self, remote: Remote, environ: Mapping[str, str], *, key_file: str | None) -> Remote:
        pod = pod_of(environ)
        assert pod is not None
        return replace(remote, rendezvous=pod.rendezvous, key=joining_key(environ, key_file))

    def run(self, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
        """Start the job in the first pod, join it in any other; return the exit code."""
        pod = pod_of(os.environ)
        assert pod is not None
        wait_for_name(pod.host.address, seconds=_NAME_SECONDS)
        if pod.index == 0:
            with pod_outputs.sent():
                return _beside_an_agent(pod, launch)
        key = job_key.from_environment(os.environ)
        assert key is not None
        ticket = Ticket(addresses=(pod.rendezvous,), name=pod.host.name, key=key)
        return joined_agent.serve(ticket, wait_seconds=_LAUNCHER_SECONDS, say=say, stay=True)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """The pod of this process: its index, all pods, and the address where they join."""

    index: int
    hosts: tuple[Host, ...]
    rendezvous: str

    @property
    def host(self) -> Host:
        return self.hosts[self.index]


def pod_of(environ: Mapping[str, str]) -> Pod | None:
    """Return the pod that this process is in; None outside of a job that `tfdist run` has submitted."""
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


def wait_for_name(name: str, *, seconds: float) -> None:
    """Wait until a name resolves to this machine: the name of a replaced pod resolves to the old one at first."""
    deadline = time.monotonic() + seconds
    while True:
        said = []
        with contextlib.suppress(OSError):
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            said = [str(address[0]) for *_, address in found]
        if any(_is_own(address) for address in said):
            return
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"{name} is not the name of this pod after {seconds:g} s: it means {', '.join(said) or 'nothing'}. The "
                "headless service has to select the pods of the job, and their subdomain has to be its name."
            )
        time.sleep(_NAME_AGAIN_SECONDS)


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _beside_an_agent(pod: Pod, launch: Callable[[], int]) -> int:
    words = [sys.executable, "-m", "tfdist", "agent", pod.rendezvous, "--name", pod.host.name]
    agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return launch()
    finally:  # it ends with the job; without having joined, by the signal
        end_process(agent, _END_SECONDS, (signal.SIGTERM, signal.SIGKILL))
