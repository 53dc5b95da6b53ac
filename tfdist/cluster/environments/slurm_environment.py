"""A task of ``srun``, with addresses derived from the node list and the job's number.

Worker i is the task with SLURM_PROCID i. Its port follows from the job and step number, plus its position on the node;
TFDIST_PORT replaces the derived port. The ``sbatch`` script itself, outside ``srun``, counts as alone.
"""

from tfdist.cluster.cluster_values import Cluster
from tfdist.cluster.environments.environment_variables import Environ, given, port, required, required_integer
from tfdist.cluster.hostlist import expand, expand_counts
from tfdist.errors import ConfigError

_FIRST_PORT, _PORTS_PER_JOB, _SLOTS = 10_000, 64, 340  # up to 31,759: below the ephemeral ports
_HINT = "srun sets it for every task: start the script with srun, or set TF_CONFIG."


def read(environ: Environ) -> Cluster | None:
    """Return the cluster of a Slurm job step; None outside of one.

    Example:
        >>> step = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "n[1-2]",
        ...         "SLURM_JOB_ID": "7", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_ID": "0"}
        >>> read(step).addresses
        ('n1:10448', 'n1:10449', 'n2:10448')
    """
    if not given(environ, "SLURM_PROCID") or not given(environ, "SLURM_STEP_ID", "SLURM_STEP_NODELIST"):
        return None
    tasks = task_count(environ)
    index = required_integer(
        environ, "SLURM_PROCID", because="this is a job step", maximum=tasks - 1, hint=f"The step has {tasks} tasks."
    )
    job_id = _either(environ, "SLURM_JOB_ID", "SLURM_JOBID")
    job = required_integer(environ, job_id, because="SLURM_PROCID is set", hint=_HINT)
    if tasks == 1:
        return Cluster(source="Slurm", job_id=str(job))
    nodes, counts = _nodes(environ), _counts(environ)
    places = _places(environ, nodes, counts, tasks)
    node, local_index = places[index]
    _check_place(environ, index, node, local_index)
    first = port(environ, default=_derived_port(environ, job), count=max(counts))
    return Cluster(
        num_workers=tasks,
        worker_index=index,
        local_index=local_index,
        local_workers=counts[node],
        addresses=tuple(f"{nodes[n]}:{first + local}" for n, local in places),
        source="Slurm",
        job_id=str(job),
    )


def task_count(environ: Environ) -> int:
    """Return the number of tasks of this step: SLURM_STEP_NUM_TASKS, else SLURM_NTASKS."""
    name = _either(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    return required_integer(environ, name, because="SLURM_PROCID is set", hint=_HINT, minimum=1)


def _either(environ: Environ, *names: str) -> str:
    """Return the first name that is set, or else the first of all."""
    return next((name for name in names if given(environ, name)), names[0])


def _nodes(environ: Environ) -> list[str]:
    name = _either(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    listed = required(environ, name, because="SLURM_PROCID is set", hint=_HINT)
    nodes = expand(listed, name=name)
    if len(set(nodes)) != len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise ConfigError(
            f"{name} is {listed!r}; the node {twice} occurs twice. Name each node once.", name=name, received=listed
        )
    return nodes


def _counts(environ: Environ) -> list[int]:
    name = _either(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    return expand_counts(required(environ, name, because="SLURM_PROCID is set", hint=_HINT), name=name)


def _places(environ: Environ, nodes: list[str], counts: list[int], tasks: int) -> list[tuple[int, int]]:
    """Return (node, position on the node) of every task, in the order in which the step hands tasks out."""
    if len(counts) != len(nodes) or sum(counts) != tasks:
        raise ConfigError(
            f"Slurm reports {len(nodes)} nodes ({', '.join(nodes[:5])}{', ...' if len(nodes) > 5 else ''}), but "
            f"{len(counts)} counts of tasks on them ({counts[:20]}, together {sum(counts)}), and {tasks} tasks. "
            "There must be one count per node, and their sum must be the number of tasks. Start with srun in the "
            "allocation itself, and unset SLURM_* variables copied from elsewhere.",
            name="SLURM_STEP_TASKS_PER_NODE",
            received=counts[:20],
        )
    blocks = [[(node, local) for local in range(count)] for node, count in enumerate(counts)]
    if environ.get("SLURM_DISTRIBUTION", "").strip().partition(":")[0].partition(",")[0] == "cyclic":
        return [block[turn] for turn in range(max(counts)) for block in blocks if turn < len(block)]
    return [place for block in blocks for place in block]


def _check_place(environ: Environ, index: int, node: int, local_index: int) -> None:
    """Compare the computed place with Slurm's, which differs for another kind of distribution."""
    for name, ours in (("SLURM_NODEID", node), ("SLURM_LOCALID", local_index)):
        if given(environ, name):
            told = required_integer(environ, name, because="SLURM_PROCID is set", hint=_HINT)
            if told != ours:
                raise ConfigError(
                    f"{name} is {told}, but task {index} would have {ours} in a distribution of tasks that is"
                    f" {environ.get('SLURM_DISTRIBUTION') or 'block'!r}. Use srun --distribution=block or cyclic, or"
                    " set TF_CONFIG.",
                    name=name,
                    received=told,
                )


def _derived_port(environ: Environ, job: int) -> int:
    # Jobs and steps that share a node have neighbouring numbers: each gets a block of ports of its own.
    step_text = environ.get("SLURM_STEP_ID", "").strip()
    step = int(step_text) if step_text.isascii() and step_text.isdigit() else 0
    return _FIRST_PORT + (job + 31 * step) % _SLOTS * _PORTS_PER_JOB
