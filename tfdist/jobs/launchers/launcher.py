"""The interface of all launchers. A launcher starts a host agent on each host of a job.

There are three ways. A command reaches a host, and all communication uses its streams. Or a program starts the agents
of all hosts, which then join over TCP. Or an allocator chooses the hosts, too. Everything after that is the same.
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
    """The agents that a launcher has started. The default is for agents of users or pods, which it does not know."""

    def ended(self) -> str:
        """Return the reason why no further host will join; empty while hosts may still join."""
        return ""

    def said(self) -> str:
        """Return the known reasons for the end of a host, as lines."""
        return ""

    def cure(self) -> str:
        """Return advice for the case that a host does not join; may be empty."""
        return ""

    def close(self) -> None:
        """End the started agents, and wait for them; other agents end with their connections."""


class Allocator(Protocol):
    """An allocator, which chooses the hosts of a job and starts their agents."""

    def allocate(
        self, count: int, *, interrupted: Callable[[], bool]
    ) -> tuple[tuple[Host, ...], tuple[dict[str, str], ...]]:
        """Return hosts with room for ``count`` processes, and the variables of each process; replace earlier hosts."""

    def start(self, hosts: Sequence[Host], tickets: Sequence[Ticket]) -> StartedAgents:
        """Start the agents of allocated hosts, each with the ticket by which it joins."""

    def close(self) -> None:
        """Release everything that was allocated."""


class Launcher:
    """The base class of launchers, which start host agents."""

    name = ""  # as in `--engine NAME`
    program = ""  # the program that it runs, per host or once; empty for none
    install = ""  # what to do when the program is missing
    by_command = False  # `command` reaches each host; otherwise agents join over TCP
    all_again = False  # after the loss of one host the agents of all hosts are started again
    without_hosts = ""  # why `--hosts` is refused; empty if it is accepted
    no_hosts = ""  # what to do when no hosts are known
    removed: tuple[str, ...] = ()  # prefixes of variables of the launcher's own processes, not meant for workers
    of_each_host: tuple[str, ...] = ()  # variables that the launcher sets on each host, so they are not passed on
    accepts: frozenset[str] = frozenset({"gpus"})  # what may be requested for each worker: fields of `Demand`
    assigns_gpus = False  # the launcher itself assigns GPUs to workers
    decided = ""  # why CPUs and memory cannot be requested once hosts are known; empty if they can
    submits = False  # a job that has no hosts yet is submitted to a queue
    takes_rendezvous = False  # `--rendezvous` names the address where hosts join
    ends_at_sigterm = False  # an agent ends at SIGTERM; otherwise the launcher sends SIGTERM to every process
    passes_sigterm_on = False  # an agent passes SIGTERM on to its workers, as a notice of preemption
    # SIGTERM to the agents of all hosts ends the job; after the loss of one host, mpirun sends it to the others alone
    ends_the_job_at_sigterm = False
    does_without = False  # the job may continue without a host that was lost and cannot be reached again
    by_hand = False  # a user starts the agents and is told the command
    join_seconds = 120.0  # for a host to join: it has to be started, and to import from a possibly slow disk
    adds_workers = "within HOSTS"  # where workers can be added up to `--max-workers`
    slow_workers = "replaced"  # what `--evict-stragglers` does about a slow worker
    notice = "SIGTERM to a worker"  # how workers learn that their machine will be taken away

    def require(self, shell: tuple[str, ...]) -> None:
        if self.program and shutil.which(shell[0]) is None:
            raise MissingDependencyError(f"--engine {self.name} needs {shell[0]}, which is not found. {self.install}")

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        return ()

    def complete(self, remote: Remote, environ: Mapping[str, str], *, key_file: str | None) -> Remote:
        """Add the rendezvous and the key if the launcher needs them."""
        return remote

    def command(self, remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line that starts the agent of a host, for a launcher with ``by_command``."""
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
        """Yield the commands that start the agents, for `--dry-run`."""
        for host in remote.hosts if self.by_command else ():
            words = shlex.join(self.command(remote, host, environ))
            yield f"# on {host.name}, where ports and folders are chosen\n{words}"

    def run(self, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
        return launch()


def agent_command(remote: Remote, environ: Mapping[str, str]) -> str:
    path = environ.get("PYTHONPATH")
    variables = f"PYTHONPATH={shlex.quote(path)} " if path else ""
    return f"{variables}exec {shlex.quote(remote.python or sys.executable)} -m {AGENT_MODULE}"


def joining_key(environ: Mapping[str, str], key_file: str | None) -> str:
    """Return the key with which agents join: from the file, which is written if missing, or from the environment."""
    key = job_key.from_environment(environ) if key_file is None else job_key.from_file(Path(key_file), make=True)
    if key is None:
        raise ConfigError(
            f"--engine agent needs a key that the hosts have too: --key-file PATH, or {JOB_KEY.name}. A missing "
            "file is written.",
            name="--key-file",
        )
    return key.hex()
