"""From a request to one process per worker, as a pure function: same inputs, same environments and commands.

`plan_chief` does the same for a job with parameter servers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster.values import TaskId
from tfdist.launch.config import LaunchConfig

HOST = "127.0.0.1"
WORKER_FILE = Path(__file__).with_name("worker.py")
TASK_FILE = Path(__file__).with_name("task.py")

# What gRPC reads, in this order and in lower case only: with a proxy it sends even 127.0.0.1 there, and waits for ever.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
# What workers get that may be started again; those that may not have none of an outer job either.
_ELASTIC = ("TFDIST_RESTARTS", "TFDIST_MEMORY_DIR", "TFDIST_ENVIRONMENT_FILE")


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """How one process is started.

    Attributes:
        index: which of the processes of the job, from 0.
        task: what it is in the cluster; its text begins the lines that it writes.
        argv: the command.
        environment: variables that it gets on top of those of the agent.
        removed: variables of the agent that it does not get.
        error_file: where it records its failure.
    """

    index: int
    task: TaskId
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    error_file: Path

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the complete environment, given that of the agent.

        Example:
            >>> me, own = TaskId(type="worker", index=0), {"A": "1"}
            >>> spec = WorkerSpec(index=0, task=me, argv=(), environment=own, removed=("B",), error_file=Path("e"))
            >>> spec.environ({"B": "2", "C": "3"})
            {'C': '3', 'A': '1'}
        """
        kept = {name: value for name, value in inherited.items() if name not in self.removed}
        return {**kept, **around_the_proxy(kept), **self.environment}


def around_the_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that lets workers reach each other directly where a proxy is set; the proxy stays for others.

    Example:
        >>> around_the_proxy({"http_proxy": "http://proxy:3128", "no_proxy": "intranet"})
        {'no_grpc_proxy': 'intranet,127.0.0.1'}
        >>> around_the_proxy({})
        {}
    """
    if not any(environ.get(name) for name in _PROXIES):
        return {}
    known = next((environ[name] for name in _EXCEPTIONS if environ.get(name)), "")
    return {"no_grpc_proxy": ",".join(filter(None, [known, HOST]))}


def script_command(config: LaunchConfig, *, python: str, agent_pid: int) -> tuple[str, ...]:
    """Return the command that runs the script, in a process that does not outlive the agent.

    Example:
        >>> script_command(LaunchConfig(target="train.py"), python="python3", agent_pid=7)[2:]
        ('--parent', '7', '--script', 'train.py')
    """
    kind = "--module" if config.is_module else "--script"
    return (python, str(WORKER_FILE), "--parent", str(agent_pid), kind, config.target, *config.arguments)


def task_command(*, python: str, agent_pid: int) -> tuple[str, ...]:
    """Return the command that serves a task, in a process that does not outlive the agent.

    Example:
        >>> task_command(python="python3", agent_pid=7)[2:]
        ('--parent', '7')
    """
    return (python, str(TASK_FILE), "--parent", str(agent_pid))


def tf_config(cluster: Mapping[str, Sequence[str]], task: TaskId) -> str:
    """Return TF_CONFIG for a task of a cluster, given every task's address by type.

    Example:
        >>> tf_config({"worker": ["a:1"]}, TaskId(type="worker", index=0))
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    """
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})


def plan(
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
    """Return one specification per worker, each of which runs the script.

    Args:
        config: the request.
        ports: one per worker, on the loopback interface.
        job_id: the same for all workers, and for no other job.
        directory: where the workers record their failures.
        python: path of the interpreter.
        agent_pid: process that the workers do not outlive.
        memory: where what outlives them is; the same directory by default.
        restarts: how often they have been started again.

    Example:
        >>> config = LaunchConfig(target="train.py")
        >>> [spec] = plan(config, ports=[40001], job_id="a1", directory=Path("/d"), python="python3", agent_pid=7)
        >>> spec.environment["TFDIST_WORKERS"]
        '127.0.0.1:40001'
    """
    assert len(ports) == config.workers
    assert not config.parameter_servers
    memory = memory or directory
    addresses = [f"{HOST}:{port}" for port in ports]
    argv = script_command(config, python=python, agent_pid=agent_pid)
    common = {
        **config.environment,
        "TFDIST_JOB_ID": job_id,
        "TFDIST_WORKERS": ",".join(addresses),
        "TFDIST_LOCAL_WORKERS": str(config.workers),
        "TFDIST_PROGRESS_FILE": str(progress_file(memory, restarts)),
        "PYTHONUNBUFFERED": "1",
    }
    if config.is_elastic:
        values = (str(restarts), str(memory / "state"), str(environment_file(directory)))
        common |= dict(zip(_ELASTIC, values, strict=True))
    if config.strategy is not None:
        common["TFDIST_STRATEGY"] = config.strategy
    if config.replicas_per_worker is not None:
        common["TFDIST_REPLICAS_PER_WORKER"] = str(config.replicas_per_worker)
    # what an earlier start recorded is not read again
    errors = [directory / f"worker-{index}{f'-{restarts}' if restarts else ''}.json" for index in range(config.workers)]
    removed = () if config.is_elastic else _ELASTIC
    return tuple(_spec(index, argv, common, removed, addresses, file) for index, file in enumerate(errors))


def progress_file(memory: Path, restarts: int) -> Path:
    """Return where the workers of a start say how far they are."""
    return memory / f"progress-{restarts}"


def environment_file(directory: Path) -> Path:
    """Return where a worker writes which variables it has set for TensorFlow and the like."""
    return directory / "environment.json"


def _spec(
    index: int,
    argv: tuple[str, ...],
    common: Mapping[str, str],
    removed: tuple[str, ...],
    addresses: list[str],
    error_file: Path,
) -> WorkerSpec:
    task = TaskId(type="worker", index=index)
    own = {
        "TFDIST_WORKER_INDEX": str(index),
        "TFDIST_LOCAL_INDEX": str(index),
        "TFDIST_ERROR_FILE": str(error_file),
    }
    if len(addresses) == 1:
        removed = ("TF_CONFIG", *removed)  # of an outer cluster: a single worker is in none
    else:
        own["TF_CONFIG"] = tf_config({"worker": addresses}, task)
    return WorkerSpec(
        index=index, task=task, argv=argv, environment={**common, **own}, removed=removed, error_file=error_file
    )
