"""The table of launchers and their abilities."""

import os
import shlex
from collections.abc import Mapping

from tfdist.jobs.launchers.joined_agent import AgentLauncher
from tfdist.jobs.launchers.kubernetes.kubernetes_launcher import KubernetesLauncher
from tfdist.jobs.launchers.launcher import Launcher, agent_command
from tfdist.jobs.launchers.mpi import MpiLauncher
from tfdist.jobs.launchers.ray.ray_cluster import RayLauncher
from tfdist.jobs.launchers.slurm import SlurmLauncher
from tfdist.jobs.plan.host_plan import Host, Remote

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ClearAllForwardings=yes")
_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")


class SshLauncher(Launcher):
    name = "ssh"
    program = "ssh"
    install = "Install OpenSSH's client."
    by_command = True
    no_hosts = "Name the hosts: --hosts a:2,b:2"
    ends_at_sigterm = True
    does_without = True

    def command(self, remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command to run here, whose last word a shell on the host runs.

        Example:
            >>> host = Host(name="me@a", address="a")
            >>> words = SshLauncher().command(Remote(hosts=(host,), python="/opt/python3"), host, {})
            >>> words[0], words[-2:]
            ('ssh', ('me@a', "exec /bin/sh -c 'exec /opt/python3 -m tfdist.jobs.remote.host_agent'"))
        """
        options = (*_OPTIONS, *_ALIVE) if os.path.basename(remote.shell[0]) == "ssh" else ()
        inner = shlex.quote(agent_command(remote, environ))
        return (*remote.shell, *options, host.name, f"exec /bin/sh -c {inner}")


class LocalLauncher(Launcher):
    name = "local"
    without_hosts = "runs on this machine"
    adds_workers = "yes"
    slow_workers = "replaced or left out"


_KINDS = (LocalLauncher, SshLauncher, SlurmLauncher, MpiLauncher, AgentLauncher, RayLauncher, KubernetesLauncher)
LAUNCHERS: Mapping[str, Launcher] = {kind.name: kind() for kind in _KINDS}


def table() -> str:
    """Return the abilities of all launchers as lines of a table."""
    heads = ("launcher", "restarts a worker", "adds workers", "standby", "slow workers", "notice of preemption")
    rows = [(one.name, "yes", one.adds_workers, "yes", one.slow_workers, one.notice) for one in LAUNCHERS.values()]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *rows))
