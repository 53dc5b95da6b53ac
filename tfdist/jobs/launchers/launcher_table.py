"""The table of launchers, and what each can do."""

from collections.abc import Mapping

from tfdist.jobs.launchers.joined_agent import AgentLauncher
from tfdist.jobs.launchers.kubernetes.kubernetes_launcher import KubernetesLauncher
from tfdist.jobs.launchers.launcher import Launcher
from tfdist.jobs.launchers.mpi import MpiLauncher
from tfdist.jobs.launchers.ray.ray_cluster import RayLauncher
from tfdist.jobs.launchers.slurm import SlurmLauncher
from tfdist.jobs.launchers.ssh import SshLauncher


class LocalLauncher(Launcher):
    """Starts workers on this machine, without an agent."""

    name = "local"
    without_hosts = "runs on this machine"
    adds_workers = "yes"
    slow_workers = "replaced or left out"


LAUNCHERS: Mapping[str, Launcher] = {
    launcher.name: launcher
    for launcher in (
        LocalLauncher(),
        SshLauncher(),
        SlurmLauncher(),
        MpiLauncher(),
        AgentLauncher(),
        RayLauncher(),
        KubernetesLauncher(),
    )
}


def table() -> str:
    """What each launcher can do, as lines."""
    heads = ("launcher", "restarts a worker", "adds workers", "standby", "slow workers", "notice of preemption")
    rows = [(one.name, "yes", one.adds_workers, "yes", one.slow_workers, one.notice) for one in LAUNCHERS.values()]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *rows))
