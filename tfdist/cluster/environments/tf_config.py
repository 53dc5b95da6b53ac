"""TF_CONFIG: TensorFlow's own description of a cluster, as the Kubernetes training operator and users write it."""

import json
from typing import Any

from tfdist.cluster.cluster_values import TASK_TYPES, Cluster, TaskId, distinct_addresses, position_on_host
from tfdist.cluster.environments.environment_variables import Environ, given
from tfdist.errors import ConfigError, fields_of
from tfdist.validation import integer, mismatch, parse_integer, shown
from tfdist.variables import JOB_ID

_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


def read(environ: Environ) -> Cluster | None:
    """Return the cluster in TF_CONFIG; None if it is not set or describes none.

    With parameter servers the chief coordinates and is not a worker, as in ParameterServerStrategy; without them it is
    worker 0. An evaluator may be missing in the cluster, because the training operator leaves it out.
    """
    if not given(environ, "TF_CONFIG"):
        return None
    raw = environ["TF_CONFIG"]
    try:
        return _cluster(_parsed(raw), job_id=JOB_ID.read(environ) or None)
    except ConfigError as error:
        raise type(error)(
            f"TF_CONFIG cannot be used: {error}\n  read: {shown(raw, limit=600)}\n  expected: {_EXAMPLE}",
            **({"name": "TF_CONFIG", "received": raw} | fields_of(error)),
        ) from None


def _parsed(raw: str) -> dict[str, Any]:
    try:
        config = json.loads(raw, object_pairs_hook=_no_repeated_key)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"it is not JSON ({error}). Write it with json.dumps, and quote it in the shell.") from None
    if not isinstance(config, dict):
        raise ConfigError(
            f"it is a JSON {type(config).__name__}; it must be an object with the keys cluster and task.",
            received=type(config).__name__,
        )
    return config


def _no_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ConfigError(f"a key occurs twice in one object, {sorted(key for key, _ in pairs)}; each must be unique.")
    return result


def _cluster(config: dict[str, Any], *, job_id: str | None) -> Cluster | None:
    if not config.get("cluster") and not config.get("task"):
        return None  # "{}", or only a platform's own keys: no cluster, as in TensorFlow
    tasks = _tasks(config.get("cluster"))
    task = _task(config.get("task"), tasks)
    servers, chief = tasks.get("ps", ()), tasks.get("chief", ())
    training_chief = () if servers else chief
    workers = training_chief + tasks.get("worker", ())
    if not workers:
        also = "; with ps, the chief only coordinates" if chief else ""
        raise ConfigError(
            f"cluster has {', '.join(tasks)} but no task that trains{also}. Add worker: [...].",
            name="cluster",
            received=", ".join(tasks),
        )
    index = -1
    if task.type == "worker":
        index = len(training_chief) + task.index
    elif task.type == "chief" and training_chief:
        index = 0
    local_index, local_workers = position_on_host(workers, index) if index >= 0 else (0, 1)
    return Cluster(
        num_workers=len(workers),
        worker_index=index,
        local_index=local_index,
        local_workers=local_workers,
        addresses=workers,
        source="TF_CONFIG",
        job_id=job_id,
        task=task,
        parameter_servers=servers,
        chief=chief[0] if chief and servers else None,
    )


def _tasks(cluster: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict) or not cluster:
        raise mismatch("cluster", cluster, "an object that maps task types to lists of host:port.")
    for task_type, addresses in cluster.items():
        if task_type not in TASK_TYPES:
            raise ConfigError(
                f"cluster has the task type {task_type!r}; it must be one of {', '.join(TASK_TYPES)}.",
                name="cluster",
                received=task_type,
            )
        if not isinstance(addresses, list) or not addresses:
            raise mismatch(f"cluster.{task_type}", addresses, "a list of host:port, not empty.")
        distinct_addresses(f"cluster.{task_type}", addresses)
    if len(cluster.get("chief", ())) > 1:
        raise ConfigError(
            f"cluster.chief is {shown(cluster['chief'])}; it must have one entry. The others are workers.",
            name="cluster.chief",
            received=shown(cluster["chief"]),
        )
    distinct_addresses("cluster", [address for task_type in TASK_TYPES for address in cluster.get(task_type, ())])
    return {task_type: tuple(addresses) for task_type, addresses in cluster.items()}


def _task(task: object, tasks: dict[str, tuple[str, ...]]) -> TaskId:
    if not isinstance(task, dict):
        raise mismatch("task", task, "an object with the keys type and index.")
    missing = [key for key in ("type", "index") if key not in task]
    if missing:
        raise ConfigError(
            f"task is {shown(task)}, without the key {' and '.join(missing)}; it must have type and index.",
            name=" and ".join(f"task.{key}" for key in missing),
            received=shown(task),
        )
    known = [*tasks, *(["evaluator"] if "evaluator" not in tasks else [])]
    if task["type"] not in known:
        raise mismatch("task.type", task["type"], f"one of the types in cluster: {', '.join(tasks)}.")
    count = len(tasks[task["type"]]) if task["type"] in tasks else None  # an evaluator need not be listed
    hint = f"cluster.{task['type']} has {count} addresses." if count is not None else ""
    check = parse_integer if isinstance(task["index"], str) else integer  # TensorFlow takes "1" for 1 too
    index = check("task.index", task["index"], minimum=0, maximum=None if count is None else count - 1, hint=hint)
    return TaskId(type=task["type"], index=index)
