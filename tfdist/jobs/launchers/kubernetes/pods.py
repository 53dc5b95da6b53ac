"""A request to Kubernetes, and the template of a job's pods, as values."""

import copy
import importlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist import validation
from tfdist.cluster.environments.kubernetes_environment import PORT
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.jobs.launchers.kubernetes.pod_outputs import Output
from tfdist.validation import integer, number, shown, text
from tfdist.variables import JOB_KEY, K8S_SERVICE, K8S_WORKERS

SCRIPT_FOLDER = "/etc/tfdist"
KINDS = ("job", "jobset", "trainjob")

_LONGEST_NAME = 40  # a pod's host name has 63 characters at most: the job's, "-node-0-" and an index
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\Z")  # a Service's name begins with a letter
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_NAMESPACE_FORM = "small letters, digits and '-', 63 at most"
_TOPOLOGY_FORM = "a label of nodes, such as topology.kubernetes.io/zone"
_TOPOLOGY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_LARGEST_SCRIPT = 900_000  # bytes; a ConfigMap has 1 MiB at most


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job for Kubernetes, one pod for each process."""

    name: str
    image: str
    pods: int
    arguments: tuple[str, ...]
    kind: str = "job"
    namespace: str = "default"
    secret: tuple[str, ...] = ()  # variables whose values go into the Secret, besides the job's key
    script: tuple[str, str] | None = None  # the name and content of a file to send
    resources: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 10.0
    restarts: int = 0
    topology: str | None = None  # a label of nodes that has one value for all pods
    patch: Mapping[str, Any] = field(default_factory=dict)  # merged into the pod template
    outputs: tuple[Output, ...] = ()

    def __post_init__(self) -> None:
        if not _LABEL.match(text("name", self.name)) or len(self.name) > _LONGEST_NAME:
            raise ConfigError(
                f"the name of the job is {shown(self.name)}; Kubernetes takes a small letter, and then small letters, "
                f"digits and '-', {_LONGEST_NAME} at most.",
                name="--name",
                received=self.name,
            )
        integer("pods", self.pods, minimum=1)
        has_blank = not text("image", self.image).strip() or re.search(r"\s", self.image)
        for option, is_right, wanted in (
            ("namespace", _NAMESPACE.match(text("namespace", self.namespace)), _NAMESPACE_FORM),
            ("image", not has_blank, "an image, such as registry/tfdist:cpu"),
            ("topology", self.topology is None or _TOPOLOGY.match(self.topology), _TOPOLOGY_FORM),
        ):
            if not is_right:
                received = getattr(self, option)
                message = f"--{option} is {shown(received)}; it must be {wanted}."
                raise ConfigError(message, name=f"--{option}", received=received)
        if self.kind == "trainjob" and (self.patch or self.topology or self.script):
            raise ConfigError(
                "--kind trainjob takes what is in the image (-m MODULE, or an absolute path there), and neither --pod "
                "nor --topology: its pods are those of the runtime tensorflow-distributed. Put them there, or take "
                "--kind jobset.",
                name="--kind",
                received=self.kind,
            )
        if self.script is not None and len(self.script[1].encode()) > _LARGEST_SCRIPT:
            raise ConfigError(
                f"script is {self.script[0]!r}, of {len(self.script[1].encode())} bytes; a ConfigMap holds "
                f"{_LARGEST_SCRIPT}. Put it into the image, and name it by its absolute path there.",
                path=self.script[0],
            )

    @property
    def variables(self) -> tuple[str, ...]:
        return (JOB_KEY.name, *self.secret)

    @property
    def selector(self) -> tuple[str, str]:
        """The label that only this job's pods have, and its value."""
        key = "batch.kubernetes.io/job-name" if self.kind == "job" else "jobset.sigs.k8s.io/jobset-name"
        return key, self.name


def job_name(stem: str) -> str:
    """Return a unique name for a job of a script.

    Example:
        >>> job_name("My train")[:-5], len(job_name("é" * 80)) <= 40
        ('my-train-', True)
    """
    kept = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[: _LONGEST_NAME - 10].strip("-")
    if not kept[:1].isalpha():
        kept = f"job-{kept}".strip("-")
    return f"{kept}-{secrets.token_hex(3)[:5]}"


CONTAINER = "node"  # as Kubeflow's Trainer wants it
SHARED_MEMORY = "1Gi"

KILLED, ASKED_TO_END = 137, 143  # exit codes after SIGKILL and SIGTERM
_AGENT_SECONDS = 20  # for `tfdist run` after its workers have ended

Values = dict[str, Any]


def template(request: Request) -> Values:
    """Return the pod template of a Job or a JobSet, merged with the user's patch."""
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
    return [
        {"name": K8S_WORKERS.name, "value": str(request.pods)},
        {"name": K8S_SERVICE.name, "value": request.name},
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": request.name, "key": name}}}
            for name in request.variables
        ),
    ]


def container(image: str, *, env: list[Values], resources: Mapping[str, str]) -> Values:
    """Return a container for a process of the job, without its command."""
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
    """Return the resources of a container: CPUs are a minimum, everything else is also a limit.

    Example:
        >>> requirements({"cpu": "4", "memory": "8Gi"})
        {'requests': {'cpu': '4', 'memory': '8Gi'}, 'limits': {'memory': '8Gi'}}
    """
    limits = {what: quantity for what, quantity in resources.items() if what != "cpu"}
    return {"requests": dict(resources), **({"limits": limits} if limits else {})}


def shared_memory() -> Values:
    """Return the volume for /dev/shm, which otherwise has 64 MiB; it counts as memory of the pod."""
    return {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}


def failure_policy() -> Values:
    """Return the policy of a Job for the end of a pod.

    An evicted or terminated pod is replaced and does not count as a failure. A killed pod is replaced up to the job's
    restarts. Any other failure ends the job, because restarts inside the pods have been tried before.
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
    """Return the placement of pods: on different nodes if there are enough, and in one topology domain if requested."""
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
    """Return values with a patch: mappings are merged by key, lists of named members by name; None removes a key."""
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


def load(name: str = "kubernetes") -> Any:
    """Import the client library of Kubernetes, which is optional, or a library that comes with it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            "--engine kubernetes needs the client of Kubernetes, which is not installed. Install it: "
            "pip install 'tfdist[kubernetes]'"
        ) from error
