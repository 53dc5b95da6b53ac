"""`tfdist run --engine kubernetes` inside a pod: the first pod starts the job, the others join it.

Every pod runs the same command. The first has the launcher, and beside it an agent as the others have. Agents stay when
a job has ended: if the first pod is replaced, its next launcher finds them, and when it has succeeded, Kubernetes ends
them.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from tfdist.cluster import job_key
from tfdist.errors import DeadlineError
from tfdist.jobs.connecting.tcp_joining import Ticket
from tfdist.jobs.launchers import joined_agent
from tfdist.jobs.launchers.kubernetes import pod_outputs
from tfdist.jobs.launchers.kubernetes.pod import Pod

_NAME_SECONDS = 300.0  # for the name of a new pod to come to where names are kept
_NAME_AGAIN_SECONDS = 0.5
_LAUNCHER_SECONDS = 3600.0  # until the first pod has come up, which may wait for a node
_END_SECONDS = 10.0


def run_in_pod(pod: Pod, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
    """Start the job in the first pod, join it in another; return the exit code."""
    wait_for_name(pod.host.address, seconds=_NAME_SECONDS)
    if pod.index == 0:
        with pod_outputs.sent():
            return _beside_an_agent(pod, launch)
    key = job_key.from_environment(os.environ)
    assert key is not None
    ticket = Ticket(addresses=(pod.rendezvous,), name=pod.host.name, key=key)
    return joined_agent.serve(ticket, wait_seconds=_LAUNCHER_SECONDS, say=say, stay=True)


def wait_for_name(name: str, *, seconds: float) -> None:
    """Wait until a name means this machine: that of a pod which replaces another has meant the other.

    Example:
        >>> wait_for_name("127.0.0.1", seconds=0)
    """
    deadline = time.monotonic() + seconds
    while True:
        said = _meaning(name)
        if any(_is_own(address) for address in said):
            return
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"{name} is not the name of this pod after {seconds:g} s: it means {', '.join(said) or 'nothing'}. The "
                "headless service has to select the pods of the job, and their subdomain has to be its name."
            )
        time.sleep(_NAME_AGAIN_SECONDS)


def _meaning(name: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)]
    except OSError:
        return []


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _beside_an_agent(pod: Pod, launch: Callable[[], int]) -> int:
    """Run the launcher with an agent of this pod beside it."""
    words = [sys.executable, "-m", "tfdist", "agent", pod.rendezvous, "--name", pod.host.name]
    agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return launch()
    finally:  # it ends with the job; one that has not joined gets the signal
        try:
            agent.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            agent.send_signal(signal.SIGTERM)
            try:
                agent.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
