"""The command line that starts what acts for the agent on a host, by OpenSSH as it is installed and configured.

Host keys are checked as the user's configuration says, nobody is asked anything, and no secret stands in the command.
"""

import os
import shlex
import sys
from collections.abc import Mapping

from tfdist.jobs.plan.host_plan import Host, Remote

MODULE = "tfdist.jobs.remote.host_agent"
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ClearAllForwardings=yes")
_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")


def command(remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that is run on this host; the last word is what a shell runs on the other.

    Example:
        >>> host = Host(name="me@a", address="a")
        >>> remote = Remote(hosts=(host,), python="/opt/python3")
        >>> command(remote, host, {})[0], command(remote, host, {})[-2:]
        ('ssh', ('me@a', "exec /bin/sh -c 'exec /opt/python3 -m tfdist.jobs.remote.host_agent'"))
    """
    options = (*_OPTIONS, *_ALIVE) if os.path.basename(remote.shell[0]) == "ssh" else ()
    return (*remote.shell, *options, host.name, f"exec /bin/sh -c {shlex.quote(inner_command(remote, environ))}")


def inner_command(remote: Remote, environ: Mapping[str, str]) -> str:
    """Return what a shell runs on a host, whatever has brought it there.

    Example:
        >>> inner_command(Remote(hosts=(), python="/p"), {"PYTHONPATH": "/a b"})
        "PYTHONPATH='/a b' exec /p -m tfdist.jobs.remote.host_agent"
    """
    path = environ.get("PYTHONPATH")
    variables = f"PYTHONPATH={shlex.quote(path)} " if path else ""
    return f"{variables}exec {shlex.quote(remote.python or sys.executable)} -m {MODULE}"
