"""The interface of all launchers. A launcher starts a host agent on each host of a job.

There are three ways. A command reaches a host, and everything goes over its streams; or a program starts the agents of
all hosts, which then join over TCP; or an allocator chooses the hosts too. Everything after that is the same.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tfdist.cluster import job_key
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.jobs.connecting.tcp_joining import AGENT_MODULE, Ticket
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.variables import JOB_KEY


class StartedAgents:
    """What started the agents of all hosts. By default users or pods did: then nothing is known about them."""

    def ended(self) -> str:
        """The reason why no further host will join; empty while hosts may still join."""
        return ""

    def said(self) -> str:
        """Known reasons for the end of a host, as lines."""
        return ""

    def cure(self) -> str:
        """A sentence that says what to try when a host does not join; may be empty."""
        return ""

    def close(self) -> None:
        """End what was started, and wait for it; other agents end with their connections."""


class Allocator(Protocol):
    """Chooses the hosts of a job, and starts their agents."""

    def allocate(
        self, count: int, *, interrupted: Callable[[], bool]
    ) -> tuple[tuple[Host, ...], tuple[dict[str, str], ...]]:
        """Hosts with room for ``count`` processes, and the variables of each process. Replaces earlier hosts."""

    def start(self, hosts: Sequence[Host], tickets: Sequence[Ticket]) -> StartedAgents:
        """Start the agents of allocated hosts, each with the ticket by which it joins."""

    def close(self) -> None:
        """Release everything that was allocated."""


class Launcher:
    """Starts host agents; the base class of all launchers.

    Attributes:
        name: as in `--engine NAME`.
        program: the program that it runs, per host or once; empty for none.
        install: what to do when the program is missing.
        by_command: whether `command` reaches each host; otherwise agents join over TCP.
        all_again: whether the loss of one host means that the agents of all hosts are started again.
        without_hosts: why `--hosts` is refused; empty if it is accepted.
        no_hosts: what to do when no hosts are known.
        removed: prefixes of variables that describe the launcher's own processes and are not meant for workers.
        of_each_host: variables that the launcher sets on each host, so that they are not passed on.
        accepts: what may be requested for each worker: names of fields of `Demand`.
        assigns_gpus: whether the launcher itself assigns GPUs to workers.
        decided: why CPUs and memory cannot be requested once hosts are known; empty if they can.
        submits: whether a job that has no hosts yet is submitted to a queue.
        takes_rendezvous: whether `--rendezvous` names the address where hosts join.
        ends_at_sigterm: whether an agent ends at SIGTERM; otherwise the launcher sends SIGTERM to every process.
        passes_sigterm_on: whether an agent passes SIGTERM on to its workers, as a notice of preemption.
        ends_the_job_at_sigterm: whether SIGTERM to the agents of all hosts ends the job. SIGTERM to only some of
            them does not: mpirun sends it to the remaining agents when one host is lost.
        does_without: whether the job may continue without a host that was lost and cannot be reached again.
        by_hand: whether a user starts the agents and is told the command.
        join_seconds: how long a host may take to join: it has to be started, and to import from a possibly slow disk.
        adds_workers: where workers can be added up to `--max-workers`.
        slow_workers: what `--evict-stragglers` does about a slow worker.
        notice: how workers learn that their machine will be taken away.
    """

    name = ""
    program = ""
    install = ""
    by_command = False
    all_again = False
    without_hosts = ""
    no_hosts = ""
    removed: tuple[str, ...] = ()
    of_each_host: tuple[str, ...] = ()
    accepts: frozenset[str] = frozenset({"gpus"})
    assigns_gpus = False
    decided = ""
    submits = False
    takes_rendezvous = False
    ends_at_sigterm = False
    passes_sigterm_on = False
    ends_the_job_at_sigterm = False
    does_without = False
    by_hand = False
    join_seconds = 120.0
    adds_workers = "within HOSTS"
    slow_workers = "replaced"
    notice = "SIGTERM to a worker"

    def require(self, shell: tuple[str, ...]) -> None:
        """Check that the program is installed."""
        if self.program and shutil.which(shell[0]) is None:
            raise MissingDependencyError(f"--engine {self.name} needs {shell[0]}, which is not found. {self.install}")

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """The hosts that the environment names."""
        return ()

    def complete(self, remote: Remote, environ: Mapping[str, str], *, key_file: str | None) -> Remote:
        """Add the rendezvous and the key, where the launcher needs them."""
        return remote

    def command(self, remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The command line that starts the agent of a host, for a launcher with ``by_command``."""
        raise NotImplementedError

    def start(
        self,
        remote: Remote,
        hosts: Sequence[Host],
        tickets: Sequence[Ticket],
        environ: Mapping[str, str],
        lose: Callable[[], None],
    ) -> StartedAgents:
        """Start the agents of all hosts, which join by their tickets; ``lose`` is called if they end unasked."""
        return StartedAgents()

    def allocator(
        self,
        remote: Remote,
        environ: Mapping[str, str],
        *,
        name: str,
        say: Callable[[str], None],
        lose: Callable[[str], None],
    ) -> Allocator | None:
        """Connect to the service that chooses the hosts; None if the hosts are known."""
        return None

    def shown(self, remote: Remote, count: int, environ: Mapping[str, str]) -> Iterator[str]:
        """The commands that start the agents, for `--dry-run`."""
        for host in remote.hosts if self.by_command else ():
            words = shlex.join(self.command(remote, host, environ))
            yield f"# on {host.name}, where ports and folders are chosen\n{words}"

    def run(self, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
        """Run the job whose hosts are known; return the exit code."""
        return launch()


def agent_command(remote: Remote, environ: Mapping[str, str]) -> str:
    """The command line of a host agent, for a shell on the host."""
    path = environ.get("PYTHONPATH")
    variables = f"PYTHONPATH={shlex.quote(path)} " if path else ""
    return f"{variables}exec {shlex.quote(remote.python or sys.executable)} -m {AGENT_MODULE}"


def joining_key(environ: Mapping[str, str], key_file: str | None) -> str:
    """The key with which agents join: from the file, which is written if missing, or from the environment."""
    key = job_key.from_environment(environ) if key_file is None else job_key.from_file(Path(key_file), make=True)
    if key is None:
        raise ConfigError(
            f"--engine agent needs a key that the hosts have too: --key-file PATH, or {JOB_KEY.name}. A missing "
            "file is written.",
            name="--key-file",
        )
    return key.hex()
