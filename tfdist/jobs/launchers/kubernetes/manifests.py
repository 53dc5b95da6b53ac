"""Kubernetes manifests as values: a Job, JobSet or TrainJob with its dependents, and Trainer's runtime."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.environments.kubernetes_environment import PORT
from tfdist.jobs.launchers.kubernetes.pods import (
    CONTAINER,
    Request,
    Values,
    container,
    failure_policy,
    load,
    requirements,
    shared_memory,
    template,
    variables,
)
from tfdist.variables import K8S_SERVICE

RUNTIME = "tensorflow-distributed"
KEPT_SECONDS = 86_400  # of a job that has ended, with its logs

_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


def job(request: Request) -> Values:
    """Return an indexed Job: one pod for each process, named by its index."""
    return _made(request, "batch/v1", "Job", spec={**_job_spec(request), "ttlSecondsAfterFinished": KEPT_SECONDS})


def service(request: Request) -> Values:
    """Return the headless service of a Job, by which pods find each other before they are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict([request.selector]),
        "ports": [{"name": "tfdist", "port": PORT}],
    }
    return _made(request, "v1", "Service", spec=spec)


def job_set(request: Request) -> Values:
    """Return a JobSet, which creates the service itself, and restarts all pods where a Job would end."""
    of_job = _job_spec(request)
    del of_job["template"]["spec"]["subdomain"]  # it is the JobSet's to set
    failed = {"name": "failed", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": request.name},
        "failurePolicy": {"maxRestarts": request.restarts, "rules": [failed]},
        "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": {"spec": of_job}}],
        "ttlSecondsAfterFinished": KEPT_SECONDS,
    }
    return _made(request, "jobset.x-k8s.io/v1alpha2", "JobSet", spec=spec)


def train_job(request: Request) -> Values:
    """Return a TrainJob of Kubeflow's Trainer v2, whose pods are those of `runtime`."""
    trainer: Values = {
        "image": request.image,
        "args": list(request.arguments),
        "env": variables(request),
        "numNodes": request.pods,
    }
    if request.resources:
        trainer["resourcesPerNode"] = requirements(request.resources)
    spec = {"runtimeRef": {"name": RUNTIME}, "trainer": trainer}
    return _made(request, "trainer.kubeflow.org/v1alpha1", "TrainJob", spec=spec)


def secret(request: Request, values: Mapping[str, str]) -> Values:
    return _made(request, "v1", "Secret", type="Opaque", immutable=True, stringData=dict(values))


def config_map(request: Request) -> Values:
    assert request.script is not None
    name, content = request.script
    return _made(request, "v1", "ConfigMap", immutable=True, data={name: content})


def objects(request: Request) -> list[Values]:
    """Return all objects except the Secret, whose values are never printed. The owner of the others comes first.

    Example:
        >>> request = Request(name="t", image="i", pods=3, arguments=("python",), script=("t.py", "pass"))
        >>> [made["kind"] for made in objects(request)]
        ['Job', 'Service', 'ConfigMap']
    """
    own = {
        "job": lambda: [job(request), service(request)],
        "jobset": lambda: [job_set(request)],
        "trainjob": lambda: [train_job(request)],
    }[request.kind]()
    return own + ([config_map(request)] if request.script is not None else [])


def runtime() -> Values:
    """Return `tensorflow-distributed`, a ClusterTrainingRuntime of Kubeflow's Trainer v2.

    Trainer has no policy for TensorFlow. The one for JAX sets the number of pods (JAX_NUM_PROCESSES), which is all that
    tfdist needs.
    """
    label = {"fieldRef": {"fieldPath": f"metadata.labels['{_JOBSET_NAME}']"}}
    pod = {
        "terminationGracePeriodSeconds": 60,
        "restartPolicy": "Never",
        "containers": [container("tfdist:gpu", env=[{"name": K8S_SERVICE.name, "valueFrom": label}], resources={})],
        "volumes": [shared_memory()],
    }
    of_job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {**_how_it_ends(restarts=3), "template": {"spec": pod}},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": RUNTIME, "labels": {"trainer.kubeflow.org/framework": "tensorflow"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "jax": {}},
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    "failurePolicy": {"maxRestarts": 3},
                    "replicatedJobs": [{"name": CONTAINER, "template": of_job}],
                }
            },
        },
    }


def as_text(made: Sequence[Values]) -> str:
    yaml = load("yaml")

    class Dumper(yaml.SafeDumper):  # type: ignore[name-defined]
        """A YAML dumper that writes multi-line texts as blocks."""

    def text_of(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text_of)
    plain = json.loads(json.dumps(made))  # no value twice: no anchors
    text: str = yaml.dump_all(plain, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


def how_to_make_the_secret(request: Request) -> str:
    name, others = request.name, f", with {', '.join(request.secret)}" if request.secret else ""
    return (
        f"# The key of the job is shown nowhere. What is submitted has it in the Secret {name}{others}; by hand:\n"
        f"#   openssl rand -hex 32 | kubectl -n {request.namespace} create secret generic {name} "
        f"--from-file={request.variables[0]}=/dev/stdin"
    )


def _made(request: Request, version: str, kind: str, **parts: Any) -> Values:
    labels = {"app.kubernetes.io/managed-by": "tfdist"}
    metadata = {"name": request.name, "namespace": request.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _job_spec(request: Request) -> Values:
    return {
        "completionMode": "Indexed",
        "completions": request.pods,
        "parallelism": request.pods,
        **_how_it_ends(restarts=request.restarts),
        "template": template(request),
    }


def _how_it_ends(*, restarts: int) -> Values:
    """Return the rules for the end of a Job: success of pod 0, which supervises, or a failure that no restart mends."""
    return {
        "backoffLimit": restarts,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "podFailurePolicy": failure_policy(),
    }
