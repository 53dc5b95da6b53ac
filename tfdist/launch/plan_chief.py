"""From a request to a chief and the tasks that serve it, as a pure function: same inputs, same commands.

The chief runs the script. Workers and parameter servers are processes of `task`, which need no code of the user's.
All are told the cluster by TF_CONFIG, which TensorFlow and `tfdist.cluster` read alike.
"""

from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster.values import TaskId
from tfdist.launch import faults
from tfdist.launch.config import LaunchConfig
from tfdist.launch.plan import (
    HOST,
    WorkerSpec,
    environment_file,
    progress_file,
    script_command,
    task_command,
    tf_config,
)

_OF_ANOTHER_JOB = (
    *("TFDIST_WORKERS", "TFDIST_WORKER_INDEX", "TFDIST_LOCAL_WORKERS", "TFDIST_LOCAL_INDEX"),
    "TFDIST_MEMORY_DIR",
)
_OF_A_CHIEF = ("TFDIST_PROGRESS_FILE", "TFDIST_ENVIRONMENT_FILE", "TFDIST_ERROR_FILE", faults.TASKS)


def tasks_file(directory: Path) -> Path:
    """Return the file that says which process is which task."""
    return directory / "tasks"


def tasks(config: LaunchConfig) -> tuple[TaskId, ...]:
    """Return what the processes of the job are, in the order of their indexes; the first runs the script.

    Example:
        >>> [str(task) for task in tasks(LaunchConfig(target="train.py", workers=2, parameter_servers=1))]
        ['chief', 'worker 0', 'worker 1', 'ps 0']
        >>> [str(task) for task in tasks(LaunchConfig(target="train.py", workers=2))]
        ['worker 0', 'worker 1']
    """
    counts = {"chief": min(config.parameter_servers, 1), "worker": config.workers, "ps": config.parameter_servers}
    return tuple(TaskId(type=kind, index=index) for kind, count in counts.items() for index in range(count))


def plan_chief(
    config: LaunchConfig,
    *,
    ports: Sequence[int],
    job_id: str,
    directory: Path,
    python: str,
    agent_pid: int,
    memory: Path | None = None,
    restarts: int = 0,
) -> tuple[WorkerSpec, ...]:
    """Return one specification per task, in the order of `tasks`.

    Args:
        config: the request, with parameter servers.
        ports: one per task, on the loopback interface.
        job_id: the same for all processes, and for no other job.
        directory: where the chief records its failure.
        python: path of the interpreter.
        agent_pid: process that the others do not outlive.
        memory: where what outlives them is; the same directory by default.
        restarts: how often the job has been started again.

    Example:
        >>> config = LaunchConfig(target="train.py", parameter_servers=1)
        >>> more = dict(job_id="a1", directory=Path("/d"), python="python3", agent_pid=7)
        >>> chief, worker, server = plan_chief(config, ports=[4001, 4002, 4003], **more)
        >>> server.environment["TF_CONFIG"][-35:]
        '"task": {"type": "ps", "index": 0}}'
    """
    everybody = tasks(config)
    assert len(ports) == len(everybody)
    assert config.parameter_servers
    cluster: dict[str, list[str]] = {}
    for task, port in zip(everybody, ports, strict=True):
        cluster.setdefault(task.type, []).append(f"{HOST}:{port}")
    serve = task_command(python=python, agent_pid=agent_pid)
    error_file = directory / f"chief-{restarts}.json"  # what an earlier start recorded is not read again
    result = []
    for index, task in enumerate(everybody):
        environment = {
            **config.environment,
            "TFDIST_JOB_ID": job_id,
            "PYTHONUNBUFFERED": "1",
            "TF_CONFIG": tf_config(cluster, task),
        }
        is_chief = task.type == "chief"
        if is_chief:
            environment |= _of_the_chief(config, error_file, directory, memory or directory, restarts)
        result.append(
            WorkerSpec(
                index=index,
                task=task,
                argv=script_command(config, python=python, agent_pid=agent_pid) if is_chief else serve,
                environment=environment,
                removed=_OF_ANOTHER_JOB if is_chief else (*_OF_ANOTHER_JOB, *_OF_A_CHIEF),
                error_file=error_file if is_chief else directory / f"{task.type}-{task.index}.json",
            )
        )
    return tuple(result)


def _of_the_chief(
    config: LaunchConfig, error_file: Path, directory: Path, memory: Path, restarts: int
) -> dict[str, str]:
    variables = {
        "TFDIST_ERROR_FILE": str(error_file),
        "TFDIST_RESTARTS": str(restarts),
        "TFDIST_PROGRESS_FILE": str(progress_file(memory, restarts)),
        "TFDIST_ENVIRONMENT_FILE": str(environment_file(directory)),
        faults.TASKS: str(tasks_file(directory)),
    }
    if config.strategy is not None:
        variables["TFDIST_STRATEGY"] = config.strategy
    if config.replicas_per_worker is not None:
        variables["TFDIST_REPLICAS_PER_WORKER"] = str(config.replicas_per_worker)
    return variables
