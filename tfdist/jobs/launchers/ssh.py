"""The launcher `ssh`: OpenSSH as installed and configured, one connection for each host.

Host keys are checked as the user's configuration says, no password is asked for, and no secret is in a command line.
"""

import os
import shlex
from collections.abc import Mapping

from tfdist.jobs.launchers.launcher import Launcher, agent_command
from tfdist.jobs.plan.host_plan import Host, Remote

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ClearAllForwardings=yes")
_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")


class SshLauncher(Launcher):
    """Reaches each host by ssh."""

    name = "ssh"
    program = "ssh"
    install = "Install OpenSSH's client."
    by_command = True
    no_hosts = "Name the hosts: --hosts a:2,b:2"
    ends_at_sigterm = True
    does_without = True

    def command(self, remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The command that is run here; its last word is run by a shell on the host.

        Example:
            >>> host = Host(name="me@a", address="a")
            >>> words = SshLauncher().command(Remote(hosts=(host,), python="/opt/python3"), host, {})
            >>> words[0], words[-2:]
            ('ssh', ('me@a', "exec /bin/sh -c 'exec /opt/python3 -m tfdist.jobs.remote.host_agent'"))
        """
        options = (*_OPTIONS, *_ALIVE) if os.path.basename(remote.shell[0]) == "ssh" else ()
        inner = shlex.quote(agent_command(remote, environ))
        return (*remote.shell, *options, host.name, f"exec /bin/sh -c {inner}")
