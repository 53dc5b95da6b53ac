"""Kubernetes manifests as values: a Job, JobSet or TrainJob with its dependents, and Trainer's runtime."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.environments.kubernetes_environment import PORT
from tfdist.jobs.launchers.kubernetes.client import load
from tfdist.jobs.launchers.kubernetes.pods import (
    CONTAINER,
    Values,
    container,
    failure_policy,
    requirements,
    shared_memory,
    template,
    variables,
)
from tfdist.jobs.launchers.kubernetes.request import Request
from tfdist.variables import K8S_SERVICE

RUNTIME = "tensorflow-distributed"
KEPT_SECONDS = 86_400  # of a job that has ended, with its logs

_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


def job(request: Request) -> Values:
    """Return an indexed Job: one pod for each process, which has its index for a name.

    Example:
        >>> job(Request(name="t", image="i", pods=3, arguments=("python",)))["spec"]["completions"]
        3
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request),
        "spec": {**_job_spec(request), "ttlSecondsAfterFinished": KEPT_SECONDS},
    }


def service(request: Request) -> Values:
    """Return the headless service of a Job, by which pods find each other before they are ready.

    Example:
        >>> service(Request(name="t", image="i", pods=3, arguments=()))["spec"]["selector"]
        {'batch.kubernetes.io/job-name': 't'}
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict([request.selector]),
            "ports": [{"name": "tfdist", "port": PORT}],
        },
    }


def job_set(request: Request) -> Values:
    """Return a JobSet, which makes the service itself, and starts all pods again where a Job would end.

    Example:
        >>> made = job_set(Request(name="t", image="i", pods=3, arguments=("python",), kind="jobset", restarts=2))
        >>> made["spec"]["failurePolicy"]["maxRestarts"], made["spec"]["network"]["subdomain"]
        (2, 't')
    """
    spec = _job_spec(request)
    del spec["template"]["spec"]["subdomain"]  # it is the JobSet's to set
    failed = {"name": "failed", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(request),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": request.name},
            "failurePolicy": {"maxRestarts": request.restarts, "rules": [failed]},
            "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": {"spec": spec}}],
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        },
    }


def train_job(request: Request) -> Values:
    """Return a TrainJob of Kubeflow's Trainer v2, whose pods are those of `runtime`.

    Example:
        >>> made = train_job(Request(name="t", image="i", pods=3, arguments=("python",), kind="trainjob"))
        >>> made["spec"]["runtimeRef"], made["spec"]["trainer"]["numNodes"]
        ({'name': 'tensorflow-distributed'}, 3)
    """
    trainer: Values = {
        "image": request.image,
        "args": list(request.arguments),
        "env": variables(request),
        "numNodes": request.pods,
    }
    if request.resources:
        trainer["resourcesPerNode"] = requirements(request.resources)
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request),
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": trainer},
    }


def secret(request: Request, values: Mapping[str, str]) -> Values:
    """Return the Secret with the key of the job, and the variables that nobody else reads."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(request),
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(values),
    }


def config_map(request: Request) -> Values:
    """Return the ConfigMap with the script that goes along."""
    assert request.script is not None
    name, content = request.script
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request),
        "immutable": True,
        "data": {name: content},
    }


def objects(request: Request) -> list[Values]:
    """Return all that is submitted but for the Secret, whose values nobody prints: what owns the rest comes first.

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


def runtime(image: str = "tfdist:gpu") -> Values:
    """Return `tensorflow-distributed`, a ClusterTrainingRuntime of Kubeflow's Trainer v2.

    A TrainJob names it, what it runs, and how many nodes. Trainer has no policy for TensorFlow. That for JAX tells each
    pod how many there are (JAX_NUM_PROCESSES), which is all that tfdist has to be told; the rest it reads off the pod.

    Example:
        >>> runtime()["metadata"]["labels"], runtime()["spec"]["mlPolicy"]
        ({'trainer.kubeflow.org/framework': 'tensorflow'}, {'numNodes': 1, 'jax': {}})
    """
    label = {"fieldRef": {"fieldPath": f"metadata.labels['{_JOBSET_NAME}']"}}
    pod = {
        "terminationGracePeriodSeconds": 60,
        "restartPolicy": "Never",
        "containers": [container(image, env=[{"name": K8S_SERVICE.name, "valueFrom": label}], resources={})],
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
    """Return objects as YAML.

    Example:
        >>> as_text([{"kind": "Job"}, {"kind": "Service"}])
        'kind: Job\\n---\\nkind: Service\\n'
    """
    yaml = load("yaml")

    class Dumper(yaml.SafeDumper):  # type: ignore[name-defined]
        """Writes texts of several lines as lines."""

    def text_of(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text_of)
    plain = json.loads(json.dumps(made))  # no value twice: no anchors
    text: str = yaml.dump_all(plain, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


def how_to_make_the_secret(request: Request) -> str:
    """Return, as comments, how the Secret is made for manifests that were printed.

    Example:
        >>> print(how_to_make_the_secret(Request(name="t", image="i", pods=2, arguments=(), secret=("TOKEN",))))
        # The key of the job is shown nowhere. What is submitted has it in the Secret t, with TOKEN; by hand:
        #   openssl rand -hex 32 | kubectl -n default create secret generic t --from-file=TFDIST_JOB_KEY=/dev/stdin
    """
    name, others = request.name, f", with {', '.join(request.secret)}" if request.secret else ""
    return (
        f"# The key of the job is shown nowhere. What is submitted has it in the Secret {name}{others}; by hand:\n"
        f"#   openssl rand -hex 32 | kubectl -n {request.namespace} create secret generic {name} "
        f"--from-file={request.variables[0]}=/dev/stdin"
    )


def _metadata(request: Request) -> Values:
    labels = {"app.kubernetes.io/managed-by": "tfdist"}
    return {"name": request.name, "namespace": request.namespace, "labels": labels}


def _job_spec(request: Request) -> Values:
    return {
        "completionMode": "Indexed",
        "completions": request.pods,
        "parallelism": request.pods,
        **_how_it_ends(restarts=request.restarts),
        "template": template(request),
    }


def _how_it_ends(*, restarts: int) -> Values:
    """Return what makes a Job end: the success of pod 0, which supervises, or a failure that no restart mends."""
    return {
        "backoffLimit": restarts,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "podFailurePolicy": failure_policy(),
    }
