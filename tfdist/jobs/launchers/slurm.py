"""The launcher `slurm`: srun within an allocation of Slurm. `sbatch` submits a job that has no allocation yet."""

from collections.abc import Callable, Mapping

from tfdist.cluster.hostlist import expand, expand_counts
from tfdist.errors import ConfigError
from tfdist.jobs.launchers import sbatch
from tfdist.jobs.launchers.launcher import Launcher, agent_command
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.jobs.plan.visible_gpus import VISIBLE
from tfdist.validation import parse_integer

#: prefixes of variables that describe a step of Slurm, or a process of an MPI job
OF_A_STEP = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP", "SLURM_TASK_PID", "SLURM_GTIDS", "SLURM_SRUN"),
    *("PMI_", "PMIX_", "PRTE_"),
)
_OF_A_TASK = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")


class SlurmLauncher(Launcher):
    """Reaches each node of an allocation by a step of srun; outside of an allocation, submits the job."""

    name = "slurm"
    program = "srun"
    install = "Run it where Slurm's commands are."
    by_command = True
    no_hosts = "Submit it: tfdist run --engine slurm does so outside of an allocation."
    removed = OF_A_STEP
    of_each_host = (VISIBLE,)
    accepts = frozenset({"cpus", "gpus", "memory"})
    decided = (
        "this runs in an allocation of Slurm, where that is decided. Ask for it there: salloc --cpus-per-task=4 "
        "--mem-per-cpu=2G"
    )
    submits = True
    does_without = True
    adds_workers = "within the allocation"
    notice = "--signal=B:TERM@SECONDS"

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """The nodes of the allocation."""
        return hosts_of_slurm(environ)

    def command(self, remote: Remote, host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The command that runs a step on one node, with everything that the job has there.

        Example:
            >>> remote = Remote(hosts=(), shell=("srun",), python="/p")
            >>> SlurmLauncher().command(remote, Host(name="n1", address="n1"), {})[-1]
            'exec /p -m tfdist.jobs.remote.host_agent'
        """
        component = () if host.group is None else (f"--het-group={host.group}",)
        where = ("--nodes=1", "--ntasks=1", f"--nodelist={host.name}", *component)
        options = (*where, "--overlap", "--cpu-bind=none", "--unbuffered")
        left_out = [word for name in _OF_A_TASK for word in ("-u", name)]  # the step is one task with the whole node
        return ("env", *left_out, *remote.shell, *options, "/bin/sh", "-c", agent_command(remote, environ))

    def run(self, launch: Callable[[], int], *, say: Callable[[str], None]) -> int:
        """Run the job; requeue it where it had to stop and `--requeue` was given."""
        return sbatch.run_in_allocation(launch, say=say)


def hosts_of_slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The nodes of a Slurm allocation, with one slot for each task there; none outside of an allocation.

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
    """The nodes of an allocation, or of one component, whose variables have this suffix."""
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
