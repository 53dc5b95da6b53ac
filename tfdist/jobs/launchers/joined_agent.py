"""The launcher `agent`: users start the agents, and each joins its job again until the job has ended.

It joins in a new process (`host_agent`) each time, so no state of an earlier connection is left.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tfdist.jobs.connecting.tcp_joining import AGENT_MODULE, UNFINISHED, Ticket
from tfdist.jobs.launchers.launcher import Launcher, joining_key
from tfdist.jobs.plan.host_plan import Remote
from tfdist.variables import JOIN_SECONDS
from tfdist.waiting import handled, wait_heeding_signals

_AGAIN_SECONDS = 1.0


class AgentLauncher(Launcher):
    """A launcher that waits for agents that users start by hand: `tfdist agent`."""

    name = "agent"
    no_hosts = "Name the hosts that will join: --hosts a:2,b:2"
    takes_rendezvous = True
    ends_at_sigterm = True
    does_without = True
    by_hand = True
    join_seconds = 600.0

    def complete(self, remote: Remote, environ: Mapping[str, str], *, key_file: str | None) -> Remote:
        return replace(remote, key=joining_key(environ, key_file))

    def shown(self, remote: Remote, count: int, environ: Mapping[str, str]) -> Iterator[str]:
        for host in remote.hosts:
            at = remote.rendezvous or "LAUNCHER:PORT"
            yield f"# on {host.name}, with the same key\ntfdist agent {at} --name {host.name}"


def serve(ticket: Ticket, *, wait_seconds: float, say: Callable[[str], None], stay: bool = False) -> int:
    """Serve a job until it has ended or a signal comes, which ends its workers too; return the exit code."""
    received: list[int] = []
    current: list[subprocess.Popen[bytes]] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        for process in current:
            process.terminate()  # no effect on an ended process

    environ = {**os.environ, **ticket.environment(), JOIN_SECONDS.name: str(wait_seconds)}
    with handled(end):
        while not received:
            say(f"host {ticket.name} joins the job at {', '.join(ticket.addresses)}")
            process = subprocess.Popen(
                [sys.executable, "-m", AGENT_MODULE], env=environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
            current[:] = [process]
            if received:  # it came between the two
                process.terminate()
            code = wait_heeding_signals(process)
            if code != UNFINISHED and not (stay and code == 0) and not received:
                say("the job has ended" if code == 0 else f"the agent of this host has ended with {code}")
                return code if code >= 0 else 128 - code
            time.sleep(_AGAIN_SECONDS)
        return 128 + received[0]
