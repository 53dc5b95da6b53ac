"""The launcher `kubernetes`: one pod for each process."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from tfdist.jobs.launchers.kubernetes import pod_entrypoint
from tfdist.jobs.launchers.kubernetes.pod import pod_of
from tfdist.jobs.launchers.launcher import Launcher, joining_key
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.variables import POD_PREFIX


class KubernetesLauncher(Launcher):
    """Lets the pods of a job join each other, one agent in each; outside of a pod, submits the job."""

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
        """The pods of the job; none outside of a pod."""
        pod = pod_of(environ)
        return () if pod is None else pod.hosts

    def complete(self, remote: Remote, environ: Mapping[str, str], *, key_file: str | None) -> Remote:
        """Add the address of the first pod, and the key."""
        pod = pod_of(environ)
        assert pod is not None
        return replace(remote, rendezvous=pod.rendezvous, key=joining_key(environ, key_file))

    def run(self, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
        """Run the job in the first pod; join it in the others."""
        pod = pod_of(os.environ)
        assert pod is not None
        return pod_entrypoint.run_in_pod(pod, launch, say=say)
