"""The processes of a job, from its request: a pure function to environments and commands.

Processes that run the script also get variables for reports and for resuming. All processes get the cluster in
TF_CONFIG.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist import variables
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

WORKER_FILE = Path(__file__).parents[1] / "process" / "script_worker.py"

# the place of a process in its job
_PLACE = (variables.WORKERS.name, variables.WORKER_INDEX.name, variables.LOCAL_WORKERS.name, variables.LOCAL_INDEX.name)
# what a process must not inherit from an outer job
_OF_A_JOB = (
    "TF_CONFIG",
    *_PLACE,
    variables.RESTARTS.name,
    variables.MEMORY_DIR.name,
    variables.COPIES_DIR.name,
    variables.ENVIRONMENT_FILE.name,
    variables.PROGRESS_FILE.name,
    variables.ERROR_FILE.name,
    variables.TASKS_FILE.name,
    variables.MONITOR_DIR.name,
)


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
    memory = memory or directory
    cluster: dict[str, list[str]] = {}
    for (task, _), (host, port) in zip(found, addresses, strict=True):
        cluster.setdefault(task.type, []).append(f"{host}:{port}")
    hosts = tuple(host for host, _ in addresses)
    tasks = [task for task, _ in found]
    result = []
    for index, (task, role) in enumerate(found):
        # records of earlier starts are not read again
        again = f"-{restarts}" if role.runs_script and restarts else ""
        error_file = directory / f"{str(task).replace(' ', '-')}{again}.json"
        environment = {**config.environment, variables.JOB_ID.name: job_id, "PYTHONUNBUFFERED": "1"}
        environment[variables.STACKS_FILE.name] = str(stacks_file(memory, restarts, task))
        if role.runs_script:
            environment[variables.ERROR_FILE.name] = str(error_file)
            environment |= _of_a_script(config, role, directory, memory, restarts)
        if role.in_step:  # its index in the job and on its host
            here = [one for one, host in enumerate(hosts) if host == hosts[index]]
            values = (",".join(cluster[task.type]), str(index), str(len(here)), str(here.index(index)))
            environment |= dict(zip(_PLACE, values, strict=True))
        if len(found) > 1:
            environment["TF_CONFIG"] = tf_config(cluster, task)
        run = script_command(config, python=python, agent_pid=agent_pid)
        result.append(
            WorkerSpec(
                index=index,
                task=task,
                argv=run if role.runs_script else task_command(python=python, agent_pid=agent_pid),
                environment=environment,
                removed=tuple(name for name in _OF_A_JOB if name not in environment),
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


def _of_a_script(config: LaunchConfig, role: Role, directory: Path, memory: Path, restarts: int) -> dict[str, str]:
    is_restarted, holds_state = config.is_elastic or not role.in_step, config.is_elastic and role.in_step
    found: dict[str, object] = {
        variables.PROGRESS_FILE.name: progress_file(memory, restarts),
        variables.MONITOR_DIR.name: steps_folder(memory, restarts) if config.monitor else None,
        variables.TASKS_FILE.name: None if role.in_step else tasks_file(directory),
        variables.RESTARTS.name: restarts if is_restarted else None,
        variables.ENVIRONMENT_FILE.name: environment_file(directory) if is_restarted else None,
        variables.MEMORY_DIR.name: state_folder(memory) if holds_state else None,
        variables.COPIES_DIR.name: copies_folder(memory) if holds_state and config.remote is not None else None,
        variables.STRATEGY.name: config.strategy,
        variables.REPLICAS_PER_WORKER.name: config.replicas_per_worker,
        variables.SHARES.name: config.shares,
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


def script_command(config: LaunchConfig, *, python: str, agent_pid: int) -> tuple[str, ...]:
    kind = "--module" if config.is_module else "--script"
    return (python, str(WORKER_FILE), "--parent", str(agent_pid), kind, config.target, *config.arguments)


def task_command(*, python: str, agent_pid: int) -> tuple[str, ...]:
    return (python, str(WORKER_FILE), "--parent", str(agent_pid), "--task")


def tf_config(cluster: Mapping[str, Sequence[str]], task: TaskId) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})
