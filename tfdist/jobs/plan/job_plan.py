"""The processes of a job, from its request: a pure function to environments and commands.

Processes that run the script also get variables for reports and for resuming. All processes get the cluster in
TF_CONFIG.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.cluster_values import TaskId
from tfdist.cluster.job_files import (
    copies_folder,
    environment_file,
    progress_file,
    stacks_file,
    state_folder,
    steps_folder,
    tasks_file,
)
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import Role, members, roles_of
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.variables import (
    COPIES_DIR,
    ENVIRONMENT_FILE,
    ERROR_FILE,
    JOB_ID,
    LOCAL_INDEX,
    LOCAL_WORKERS,
    MEMORY_DIR,
    MONITOR_DIR,
    PROGRESS_FILE,
    REPLICAS_PER_WORKER,
    RESTARTS,
    SHARES,
    STACKS_FILE,
    STRATEGY,
    TASKS_FILE,
    WORKER_INDEX,
    WORKERS,
)

WORKER_FILE = Path(__file__).parents[1] / "process" / "script_worker.py"

# The place of a process in its job; those of an outer job are removed.
_PLACE = (WORKERS.name, WORKER_INDEX.name, LOCAL_WORKERS.name, LOCAL_INDEX.name)
_RESTARTABLE = (RESTARTS.name, MEMORY_DIR.name, COPIES_DIR.name, ENVIRONMENT_FILE.name)
_OF_A_SCRIPT = (PROGRESS_FILE.name, ENVIRONMENT_FILE.name, ERROR_FILE.name, TASKS_FILE.name, MONITOR_DIR.name)


@dataclass(frozen=True, kw_only=True)
class _Start:
    config: LaunchConfig
    job_id: str
    directory: Path
    memory: Path
    restarts: int


def plan(
    config: LaunchConfig,
    *,
    addresses: Sequence[tuple[str, int]],
    job_id: str,
    directory: Path,
    python: str,
    agent_pid: int,
    memory: Path | None = None,
    restarts: int = 0,
    key: str = "",
) -> tuple[WorkerSpec, ...]:
    found = members(roles_of(config))
    assert len(addresses) == len(found)
    start = _Start(config=config, job_id=job_id, directory=directory, memory=memory or directory, restarts=restarts)
    cluster: dict[str, list[str]] = {}
    for (task, _), (host, port) in zip(found, addresses, strict=True):
        cluster.setdefault(task.type, []).append(f"{host}:{port}")
    hosts = tuple(host for host, _ in addresses)
    tasks = [task for task, _ in found]
    result = []
    for index, (task, role) in enumerate(found):
        error_file = _error_file(start, task, role)
        environment = {**config.environment, JOB_ID.name: job_id, "PYTHONUNBUFFERED": "1"}
        environment[STACKS_FILE.name] = str(stacks_file(start.memory, start.restarts, task))
        environment |= _of_a_script(start, error_file, role) if role.runs_script else {}
        if role.in_step:  # its index in the job and on its host
            here = [one for one, host in enumerate(hosts) if host == hosts[index]]
            values = (",".join(cluster[task.type]), str(index), str(len(here)), str(here.index(index)))
            environment |= dict(zip(_PLACE, values, strict=True))
        alone = len(found) == 1  # it is in no cluster, and not in that of an outer job either
        environment |= {} if alone else {"TF_CONFIG": tf_config(cluster, task)}
        run = script_command(config, python=python, agent_pid=agent_pid)
        result.append(
            WorkerSpec(
                index=index,
                task=task,
                argv=run if role.runs_script else task_command(python=python, agent_pid=agent_pid),
                environment=environment,
                removed=(*(("TF_CONFIG",) if alone else ()), *_removed(start, role)),
                error_file=error_file,
                host=addresses[index][0],
                port=addresses[index][1],
                peers=tuple(dict.fromkeys(hosts)),
                key=key if role.in_step else "",
                gpus=_gpus(config, tasks, index, hosts),
                exit_seconds=config.exit_seconds,
            )
        )
    return tuple(result)


def _error_file(start: _Start, task: TaskId, role: Role) -> Path:
    name = task.type if task.type == "chief" else f"{task.type}-{task.index}"
    # records of earlier starts are not read again
    again = f"-{start.restarts}" if role.runs_script and start.restarts else ""
    return start.directory / f"{name}{again}.json"


def _of_a_script(start: _Start, error_file: Path, role: Role) -> dict[str, str]:
    config = start.config
    is_restarted, holds_state = config.is_elastic or not role.in_step, config.is_elastic and role.in_step
    found: dict[str, object] = {
        ERROR_FILE.name: error_file,
        PROGRESS_FILE.name: progress_file(start.memory, start.restarts),
        MONITOR_DIR.name: steps_folder(start.memory, start.restarts) if config.monitor else None,
        TASKS_FILE.name: None if role.in_step else tasks_file(start.directory),
        RESTARTS.name: start.restarts if is_restarted else None,
        ENVIRONMENT_FILE.name: environment_file(start.directory) if is_restarted else None,
        MEMORY_DIR.name: state_folder(start.memory) if holds_state else None,
        COPIES_DIR.name: copies_folder(start.memory) if holds_state and config.remote is not None else None,
        STRATEGY.name: config.strategy,
        REPLICAS_PER_WORKER.name: config.replicas_per_worker,
        SHARES.name: config.shares,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _gpus(config: LaunchConfig, tasks: Sequence[TaskId], index: int, hosts: Sequence[str]) -> tuple[int, ...] | None:
    if config.gpus_per_worker is None:
        return None
    if tasks[index].type != "worker":
        return ()
    before = [one for one in range(index) if tasks[one].type == "worker" and hosts[one] == hosts[index]]
    first = len(before) * config.gpus_per_worker
    return tuple(range(first, first + config.gpus_per_worker))


def _removed(start: _Start, role: Role) -> tuple[str, ...]:
    """Return the variables of an outer job that a process must not inherit."""
    unmonitored = () if start.config.monitor or not role.runs_script else (MONITOR_DIR.name,)
    if role.in_step:
        return (*unmonitored, *(() if start.config.is_elastic else _RESTARTABLE))
    place = (*_PLACE, MEMORY_DIR.name, COPIES_DIR.name, *unmonitored)
    return place if role.runs_script else (*place, *_OF_A_SCRIPT)


def script_command(config: LaunchConfig, *, python: str, agent_pid: int) -> tuple[str, ...]:
    kind = "--module" if config.is_module else "--script"
    return (python, str(WORKER_FILE), "--parent", str(agent_pid), kind, config.target, *config.arguments)


def task_command(*, python: str, agent_pid: int) -> tuple[str, ...]:
    return (python, str(WORKER_FILE), "--parent", str(agent_pid), "--task")


def tf_config(cluster: Mapping[str, Sequence[str]], task: TaskId) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})
