"""`tfdist run --engine kubernetes`: what is submitted fits the published schemas, and its pods find each other."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from tests.refusals import refused
from tfdist.cli.main import main
from tfdist.cluster import from_environment, job_key
from tfdist.errors import ConfigError
from tfdist.jobs.launchers.kubernetes import kubernetes_api
from tfdist.jobs.launchers.kubernetes.following import how_it_ended, is_running
from tfdist.jobs.launchers.kubernetes.kubernetes_launcher import pod_of
from tfdist.jobs.launchers.kubernetes.manifests import objects, runtime, secret
from tfdist.jobs.launchers.kubernetes.pods import KINDS, Request, job_name, merged

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "docker" / "kubernetes" / "trainer"
FULL: dict[str, Any] = {
    "name": "train",
    "image": "registry/tfdist:cpu",
    "pods": 3,
    "arguments": ("python", "-m", "tfdist", "run", "/etc/tfdist/script.py"),
    "secret": ("TOKEN",),
    "resources": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
    "restarts": 2,
}
OF_PODS: dict[str, Any] = {
    "script": ("script.py", "print('ü')\n"),
    "topology": "topology.kubernetes.io/zone",
    "patch": {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"gpu": "yes"},
            "volumes": [
                {"name": "backup", "persistentVolumeClaim": {"claimName": "mine"}},
                {"name": "shared-memory", "emptyDir": {"sizeLimit": "8Gi"}},
            ],
            "containers": [{"name": "node", "volumeMounts": [{"name": "backup", "mountPath": "/backup"}]}],
        },
    },
}


def request(kind: str, **more: Any) -> Request:
    return Request(**{**FULL, **({} if kind == "trainjob" else OF_PODS), "kind": kind, **more})


def check(made: dict[str, Any]) -> None:
    """Compare with the published schema; what it does not know is an error."""
    group = made["apiVersion"].partition("/")[0]
    if group in ("v1", "batch"):
        kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kubeflow_trainer_api import models
    prefix = {"jobset.x-k8s.io": "JobsetV1alpha2", "trainer.kubeflow.org": "TrainerV1alpha1"}[group]
    model = getattr(models, f"{prefix}{made['kind']}")
    known = json.loads(model.from_json(json.dumps(made)).to_json())
    assert known == json.loads(json.dumps(made))  # what it does not know it has left out


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_submitted_fits_its_schema(kind: str) -> None:
    wanted = request(kind)
    made = [*objects(wanted), secret(wanted, {"TFDIST_JOB_KEY": "0" * 64, "TOKEN": "t"})]
    kinds = {"job": ["Job", "Service", "ConfigMap"], "jobset": ["JobSet", "ConfigMap"], "trainjob": ["TrainJob"]}
    assert [one["kind"] for one in made] == [*kinds[kind], "Secret"]
    for one in made:
        check(one)
        with pytest.raises((kubernetes_validate.ValidationError, AssertionError)):
            check({**one, "spek": {}})
        assert (one["metadata"]["name"], one["metadata"]["namespace"]) == ("train", "default")


def template_of(made: dict[str, Any]) -> dict[str, Any]:
    spec = made["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"] if made["kind"] == "JobSet" else spec
    return job["template"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_find_each_other(kind: str) -> None:
    wanted = request(kind)
    made = objects(wanted)[0]
    if kind == "trainjob":
        (runtimes,) = runtime()["spec"]["template"]["spec"]["replicatedJobs"]
        container = {**runtimes["template"]["spec"]["template"]["spec"]["containers"][0], **made["spec"]["trainer"]}
    else:
        (container,) = template_of(made)["spec"]["containers"]
    stem = "train" if kind == "job" else "train-node-0"
    given = {one["name"]: one.get("value", "0" * 64) for one in container["env"]}
    for index in range(3):
        environ = {**given, "JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{stem}-{index}"}
        addresses = [f"{stem}-{one}.train" for one in range(3)]
        assert from_environment(environ).addresses == tuple(f"{address}:2222" for address in addresses)
        pod = pod_of(environ)
        assert pod is not None
        assert ([host.address for host in pod.hosts], pod.index) == (addresses, index)
        assert pod.rendezvous == f"{stem}-0.train:2222"
    assert container["ports"][0]["containerPort"] == 2222


def test_a_pod_that_is_alone_and_one_without_the_key() -> None:
    environ = {"HOSTNAME": "t-0", "JOB_COMPLETION_INDEX": "0", "TFDIST_K8S_WORKERS": "1", "TFDIST_K8S_SERVICE": "t"}
    with refused(ConfigError, name="TFDIST_JOB_KEY"):
        pod_of(environ)
    pod = pod_of({**environ, "TFDIST_JOB_KEY": job_key.drawn()})
    assert pod is not None
    assert (pod.host.address, pod.rendezvous) == ("t-0", "t-0:2222")
    assert pod_of({"HOSTNAME": "t-0", "TFDIST_JOB_KEY": "x"}) is None


def test_what_trainer_tells_is_enough() -> None:
    """A script that a TrainJob starts itself: what Trainer's policy for JAX sets, and what the runtime does."""
    told = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "t-node-0-0.t:29500"}
    pod = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "t-node-0-1"}
    for more in ({}, {"TFDIST_K8S_SERVICE": "t"}):
        cluster = from_environment({**told, **pod, **more})
        assert (cluster.worker_index, cluster.addresses) == (1, ("t-node-0-0.t:2222", "t-node-0-1.t:2222"))
    assert from_environment({**told, **pod, "TFDIST_K8S_WORKERS": "1"}).num_workers == 1
    assert from_environment(told).num_workers == 1  # no pod


def test_the_runtime_is_that_of_the_base() -> None:
    check(runtime())
    assert yaml.safe_load((TRAINER / "runtime.yaml").read_text()) == runtime()
    for folder in (TRAINER, TRAINER.parent):
        base = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert base["resources"]
        assert all((folder / name).is_file() for name in base["resources"])


def test_what_happens_to_a_pod_decides_over_the_job() -> None:
    job = objects(request("job"))[0]
    set_of_jobs = objects(request("jobset"))[0]
    for spec in (job["spec"], set_of_jobs["spec"]["replicatedJobs"][0]["template"]["spec"]):
        assert spec["backoffLimit"] == 2
        assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
        first, asked, failed = spec["podFailurePolicy"]["rules"]
        assert (first["action"], first["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
        assert (asked["action"], asked["onExitCodes"]["values"]) == ("Ignore", [143])
        assert (failed["action"], failed["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
        assert failed["onExitCodes"]["values"] == [137, 143]
        (container,) = spec["template"]["spec"]["containers"]
        assert {asked["onExitCodes"]["containerName"], failed["onExitCodes"]["containerName"]} == {container["name"]}
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > FULL.get("grace_seconds", 10)
    assert set_of_jobs["spec"]["failurePolicy"]["maxRestarts"] == 2


def test_a_patch_adds_to_the_pods() -> None:
    made = template_of(objects(request("job"))[0])
    (container,) = made["spec"]["containers"]
    volumes = {one["name"]: one for one in made["spec"]["volumes"]}
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["nodeSelector"] == {"gpu": "yes"}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"shared-memory", "script", "backup"} == volumes.keys()
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/dev/shm", "/etc/tfdist", "/backup"]
    base = {"a": [{"name": "x"}]}
    assert merged(base, {"a": [{"name": "x", "v": 1}]}) == {"a": [{"name": "x", "v": 1}]}
    assert base == {"a": [{"name": "x"}]}


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("name", "Train", "--name"),
        ("name", "1t", "--name"),
        ("name", "t" * 41, "--name"),
        ("image", "a b", "--image"),
        ("namespace", "A", "--namespace"),
        ("topology", "no label!", "--topology"),
        ("pods", 0, "pods"),
        ("kind", "trainjob", "--kind"),
    ],
)
def test_what_kubernetes_would_not_take(field: str, value: object, name: str) -> None:
    with refused(ConfigError, name=name, received=value):
        Request(**{**FULL, **OF_PODS, field: value})


def test_a_script_that_no_config_map_holds() -> None:
    with refused(ConfigError, path="s.py", mentions=["1000000 bytes"]):
        Request(**{**FULL, **OF_PODS, "script": ("s.py", "é" * 500_000)})


def test_names_of_jobs() -> None:
    names = {job_name("Ünï train.v2") for _ in range(20)}
    assert len(names) > 1
    for name in (*names, job_name(""), job_name("9"), job_name("x" * 99)):
        assert Request(**{**FULL, "name": name}).name == name


@pytest.mark.parametrize(("code", "phase", "ended"), [(0, "Pending", None), (5, "Running", None), (5, "Failed", 5)])
def test_a_container_before_ours_ends_a_pod_if_it_fails(code: int, phase: str, ended: int | None) -> None:
    other = {"name": "fetch", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    ours = {"name": "node", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": phase, "initContainerStatuses": [other], "containerStatuses": [ours]}
    pod = {"metadata": {"name": "train-0"}, "status": status}
    found = how_it_ended(pod)
    assert (found and found.exit_code, is_running(pod)) == (ended, False)


def run(*arguments: object, **variables: str) -> tuple[int, str]:
    without = {"KUBECONFIG": "/nowhere", "TFDIST_TRIALS": None}  # the tests' own, which would go along
    done = CliRunner().invoke(main, ["run", *map(str, arguments)], env={**without, **variables})
    return done.exit_code, done.output


DRY = ("--engine", "kubernetes", "-n", 2, "--image", "tfdist:cpu", "--dry-run")


def test_dry_run_prints_manifests_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text("print(1)\nprint('ü')\n")
    key = job_key.drawn()
    more = ("--max-restarts", 1, "--namespace", "team", "--memory-per-worker=16G", "--gpus-per-worker", 2)
    path = str(tmp_path / "my train.py")
    code, out = run(*DRY, *more, "--pass-env", "TOKEN", path, "--image", "a b", TOKEN="hidden", TFDIST_JOB_KEY=key)
    assert code == 0, out
    assert key not in out
    assert "hidden" not in out
    job, service, script = yaml.safe_load_all(out)
    for one in (job, service, script):
        check(one)
        assert one["metadata"]["namespace"] == "team"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][:4] == ["python", "-m", "tfdist", "run"]
    options = ["--engine", "kubernetes", "-n", "2", "--max-restarts", "1"]
    assert container["args"][4:] == [*options, "/etc/tfdist/script.py", "--image", "a b"]
    assert script["data"] == {"script.py": "print(1)\nprint('ü')\n"}
    assert container["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "2"}
    assert {one["name"] for one in container["env"] if "valueFrom" in one} == {"TFDIST_JOB_KEY", "TOKEN"}
    assert f"create secret generic {job['metadata']['name']} --from-file=TFDIST_JOB_KEY=/dev/stdin" in out


def test_servers_have_pods_and_what_is_in_the_image_is_not_sent() -> None:
    code, out = run(*DRY, "--strategy", "parameter-server", "--parameter-servers", 2, "/in the image/train.py")
    job, service = yaml.safe_load_all(out)
    assert (code, job["spec"]["completions"], service["kind"]) == (0, 5, "Service")
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "/in the image/train.py"
    code, out = run(*DRY, "--kind", "trainjob", "--name", "mine", "-m", "package.train")
    assert code == 0, out
    ours, train_job = yaml.safe_load_all(out)
    assert (ours["kind"], train_job["metadata"]["name"]) == ("ClusterTrainingRuntime", "mine")
    assert train_job["spec"]["trainer"]["args"][-2:] == ["-m", "package.train"]


def test_bad_requests_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "pod.yaml").write_text("- a\n")
    (tmp_path / "binary.py").write_bytes(b"\xff")
    path = str(tmp_path / "train.py")
    for said, arguments in (
        ("needs an image", ("--engine", "kubernetes", path)),
        ("no such file", (*DRY, "train.py")),
        ("is for --engine kubernetes", ("--image", "a", path)),
        ("--wait-seconds: for --engine ray", (*DRY, "--wait-seconds", 1, path)),
        ("such as 4096", (*DRY, "--memory-per-worker", "much", path)),
        ("--cpus-per-worker", (*DRY, "--cpus-per-worker", -1, path)),
        ("whole GPUs", (*DRY, "--gpus-per-worker", 0.5, path)),
        ("whole GPUs", (*DRY, "--gpus-per-worker", "inf", path)),
        ("whole GPUs", (*DRY, "--gpus-per-worker", "nan", path)),
        ("one pod", (*DRY, "--hosts", "a", path)),
        ("--pass-env names NOT_SET", (*DRY, "--pass-env", "NOT_SET", path)),
        ("a part of a pod's template", (*DRY, "--pod", tmp_path / "pod.yaml", path)),
        ("not UTF-8 text", (*DRY, tmp_path / "binary.py")),
    ):
        code, out = run(*arguments)
        assert (code, said in out) == (2, True), (said, out)


def test_an_answer_that_is_no_json_is_a_failure_that_may_not_occur_again() -> None:
    with pytest.raises(kubernetes_api._transport_errors()):
        kubernetes_api._values(SimpleNamespace(data=b"<html>gateway</html>"))
