"""A request to Kubernetes: names, image, command, and the needs of each pod."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.errors import ConfigError
from tfdist.jobs.launchers.kubernetes.pod_outputs import Output
from tfdist.validation import integer, shown, text
from tfdist.variables import JOB_KEY

SCRIPT_FOLDER = "/etc/tfdist"
KINDS = ("job", "jobset", "trainjob")

_LONGEST_NAME = 40  # a pod's host name has 63 characters at most: the job's, "-node-0-" and an index
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\Z")  # a Service's name begins with a letter
_TOPOLOGY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_LARGEST_SCRIPT = 900_000  # bytes; a ConfigMap has 1 MiB at most


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job for Kubernetes, one pod for each process.

    `secret` names variables whose values go into the Secret, besides the job's key. `script` is the name and content of
    a file to send. All pods run where the node label `topology` has one value. `patch` is merged into the pod template.
    """

    name: str
    image: str
    pods: int
    arguments: tuple[str, ...]
    kind: str = "job"
    namespace: str = "default"
    secret: tuple[str, ...] = ()
    script: tuple[str, str] | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 10.0
    restarts: int = 0
    topology: str | None = None
    patch: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()

    def __post_init__(self) -> None:
        if not _LABEL.match(text("name", self.name)) or len(self.name) > _LONGEST_NAME:
            raise ConfigError(
                f"the name of the job is {shown(self.name)}; Kubernetes takes a small letter, and then small letters, "
                f"digits and '-', {_LONGEST_NAME} at most.",
                name="--name",
                received=self.name,
            )
        if not re.match(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z", text("namespace", self.namespace)):
            raise ConfigError(
                f"--namespace is {shown(self.namespace)}; it must be small letters, digits and '-', 63 at most.",
                name="--namespace",
                received=self.namespace,
            )
        if not text("image", self.image).strip() or re.search(r"\s", self.image):
            raise ConfigError(
                f"--image is {shown(self.image)}; it must be an image, such as registry/tfdist:cpu.",
                name="--image",
                received=self.image,
            )
        integer("pods", self.pods, minimum=1)
        if self.topology is not None and not _TOPOLOGY.match(self.topology):
            raise ConfigError(
                f"--topology is {shown(self.topology)}; it must be a label of nodes, such as "
                "topology.kubernetes.io/zone.",
                name="--topology",
                received=self.topology,
            )
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
        """Names of the variables that pods get from the Secret."""
        return (JOB_KEY.name, *self.secret)

    @property
    def selector(self) -> tuple[str, str]:
        """The label that only this job's pods have, and its value."""
        key = "batch.kubernetes.io/job-name" if self.kind == "job" else "jobset.sigs.k8s.io/jobset-name"
        return key, self.name


def job_name(stem: str) -> str:
    """A unique name for a job of a script.

    Example:
        >>> job_name("My train")[:-5], len(job_name("é" * 80)) <= 40
        ('my-train-', True)
    """
    kept = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[: _LONGEST_NAME - 10].strip("-")
    if not kept[:1].isalpha():
        kept = f"job-{kept}".strip("-")
    return f"{kept}-{secrets.token_hex(3)[:5]}"
