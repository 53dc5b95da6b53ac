"""The template of a job's pods, as values."""

import copy
from collections.abc import Mapping
from typing import Any

from tfdist import validation
from tfdist.cluster.environments.kubernetes_environment import PORT
from tfdist.errors import ConfigError
from tfdist.jobs.launchers.kubernetes.request import SCRIPT_FOLDER, Request
from tfdist.validation import number
from tfdist.variables import K8S_SERVICE, K8S_WORKERS

CONTAINER = "node"  # as Kubeflow's Trainer wants it
SHARED_MEMORY = "1Gi"

KILLED, ASKED_TO_END = 137, 143  # exit codes after SIGKILL and SIGTERM
_AGENT_SECONDS = 20  # for what `tfdist run` does after its workers have ended

Values = dict[str, Any]


def template(request: Request) -> Values:
    """Return the template of the pods of a Job or a JobSet.

    Each pod has memory in /dev/shm, a name that the others resolve before it is ready, and the job's key and the
    secret variables from a Secret.

    Example:
        >>> made = template(Request(name="t", image="i", pods=2, arguments=("python", "t.py")))
        >>> made["spec"]["containers"][0]["args"], made["spec"]["subdomain"]
        (['python', 't.py'], 't')
    """
    spec: Values = {
        "subdomain": request.name,
        "restartPolicy": "Never",  # a policy for failures of pods asks for it
        "terminationGracePeriodSeconds": round(request.grace_seconds) + _AGENT_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_topology(request),
        "containers": [container(request.image, env=variables(request), resources=request.resources)],
        "volumes": [shared_memory()],
    }
    spec["containers"][0]["args"] = list(request.arguments)
    if request.script is not None:
        spec["containers"][0]["volumeMounts"].append({"name": "script", "mountPath": SCRIPT_FOLDER, "readOnly": True})
        spec["volumes"].append({"name": "script", "configMap": {"name": request.name}})
    return merged({"spec": spec}, request.patch)


def variables(request: Request) -> list[Values]:
    """Return the variables of a pod's container."""
    return [
        {"name": K8S_WORKERS.name, "value": str(request.pods)},
        {"name": K8S_SERVICE.name, "value": request.name},
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": request.name, "key": name}}}
            for name in request.variables
        ),
    ]


def container(image: str, *, env: list[Values], resources: Mapping[str, str]) -> Values:
    """Return a container in which a process of the job may run, without its command."""
    made: Values = {
        "name": CONTAINER,
        "image": image,
        "env": env,
        "ports": [{"containerPort": PORT, "name": "tfdist", "protocol": "TCP"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    return {**made, **({"resources": requirements(resources)} if resources else {})}


def quantities(*, cpus: float | None = None, gpus: float | None = None, memory: int | None = None) -> dict[str, str]:
    """Return what a process needs as Kubernetes names it.

    Example:
        >>> quantities(cpus=0.5, gpus=1, memory=16 << 30)
        {'cpu': '0.5', 'memory': '16Gi', 'nvidia.com/gpu': '1'}
    """
    found = {}
    if cpus is not None:
        found["cpu"] = f"{number('--cpus-per-worker', cpus, minimum=0.001, maximum=100_000):.10g}"
    if memory is not None:
        size = validation.shown_bytes(memory)
        found["memory"] = size if size.isdigit() else f"{size}i"
    if gpus is not None:
        if gpus < 1 or not float(gpus).is_integer():
            raise ConfigError(f"--gpus-per-worker is {gpus:g}; Kubernetes gives a pod whole GPUs, at least 1.")
        found["nvidia.com/gpu"] = str(int(gpus))
    return found


def requirements(resources: Mapping[str, str]) -> Values:
    """Return resources as a container asks for them: of CPUs at least as many, of all else as much.

    Example:
        >>> requirements({"cpu": "4", "memory": "8Gi"})
        {'requests': {'cpu': '4', 'memory': '8Gi'}, 'limits': {'memory': '8Gi'}}
    """
    limits = {what: quantity for what, quantity in resources.items() if what != "cpu"}
    return {"requests": dict(resources), **({"limits": limits} if limits else {})}


def shared_memory() -> Values:
    """Return the volume for /dev/shm, which has 64 MiB in a container without it; it counts as memory of the pod."""
    return {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}


def failure_policy() -> Values:
    """Return what the end of a pod means for its Job.

    A pod that was evicted, preempted or asked to end is replaced and counts as no failure; one that was killed is
    replaced as often as the job has restarts. Any other failure ends the job at once, since what can be started again
    was started again inside the pods.
    """

    def codes(operator: str, *values: int) -> Values:
        return {"containerName": CONTAINER, "operator": operator, "values": list(values)}

    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "Ignore", "onExitCodes": codes("In", ASKED_TO_END)},
            {"action": "FailJob", "onExitCodes": codes("NotIn", KILLED, ASKED_TO_END)},
        ]
    }


def _topology(request: Request) -> Values:
    """Return where pods run: each on another node where there are enough, and all in one domain if one is named."""
    selector = {"matchLabels": dict([request.selector])}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": selector,
    }
    made: Values = {"topologySpreadConstraints": [spread]}
    if request.topology is not None:
        term = {"labelSelector": selector, "topologyKey": request.topology}
        made["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return made


def merged(base: Any, patch: Any) -> Any:
    """Return values with a patch merged into them: mappings by key, lists whose members have names by name.

    Other lists and values replace those that were there, and None removes a key.

    Example:
        >>> merged({"a": [{"name": "x", "v": 1}], "b": 1}, {"a": [{"name": "x", "w": 2}, {"name": "y"}], "b": None})
        {'a': [{'name': 'x', 'v': 1, 'w': 2}, {'name': 'y'}]}
    """
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        kept = {key: value for key, value in base.items() if patch.get(key, ...) is not None}
        new = {key: merged(kept.get(key), value) for key, value in patch.items() if value is not None}
        return {**copy.deepcopy(kept), **new}
    if _have_names(base) and _have_names(patch):
        changes = {one["name"]: one for one in patch}
        old = [merged(one, changes.pop(one["name"])) if one["name"] in changes else copy.deepcopy(one) for one in base]
        return [*old, *(copy.deepcopy(one) for one in changes.values())]
    return copy.deepcopy(patch)


def _have_names(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(v, Mapping) and "name" in v for v in values)
