"""A host agent that was started by hand: joins a job, and rejoins it until the job has ended.

Each time that it joins, another process does (`host_agent`), so nothing of what was before is left in it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

from tfdist.jobs.remote.connecting.tcp_joining import Ticket
from tfdist.jobs.remote.host_agent import UNFINISHED
from tfdist.jobs.remote.ssh import MODULE
from tfdist.variables import JOIN_SECONDS
from tfdist.waiting import handled, wait_heeding_signals

_AGAIN_SECONDS = 1.0


def serve(ticket: Ticket, *, wait_seconds: float, say: Callable[[str], None], stay: bool = False) -> int:
    """Serve a job until it has ended; return the exit code.

    SIGINT, SIGTERM and SIGHUP end it, and the workers here with it, unless they are ignored.
    """
    received: list[int] = []
    current: list[subprocess.Popen[bytes]] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        for process in current:
            process.terminate()  # one that has ended gets nothing

    environ = {**os.environ, **ticket.environment(), JOIN_SECONDS.name: str(wait_seconds)}
    with handled(end):
        while not received:
            say(f"host {ticket.name} joins the job at {', '.join(ticket.addresses)}")
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE], env=environ, stdin=subprocess.DEVNULL, start_new_session=True
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
