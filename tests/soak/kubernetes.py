"""Submit jobs to a real Kubernetes, and check that their results are those of a job on one host.

    python -m tests.soak.kubernetes BINARIES [--etcd PATH] [--definitions FILE ...] [trial ...]

BINARIES is a folder with kube-apiserver, kube-controller-manager and kube-scheduler, which run here on the loopback
interface with etcd; PATH is that program. The nodes are simulated and their pods are processes (`kubelet.py`), so it
needs root, iproute2 and openssl. FILEs have the definitions (CRDs) of JobSet and of Kubeflow's Trainer. Their
controllers are not needed, because their objects are only created. Jobs are submitted by a service account that has
only the rights of docker/kubernetes/role.yaml.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from tests.pods import network
from tests.soak.control_plane import Control, control_plane, install
from tests.soak.kubelet import Nodes, Running, listed
from tests.soak.trials import QUIET, RESUMABLE, ROOT, RUN, SECONDS, ended, started, wait_until
from tfdist.jobs.launchers.kubernetes.manifests import objects, runtime, secret
from tfdist.jobs.launchers.kubernetes.pods import Request

NAMESPACE = "team"
PLACES = {
    "Job": ("/apis/batch/v1", "jobs"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "TrainJob": ("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "ClusterTrainingRuntime": ("/apis/trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes"),
}
CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "20"}
MOST_CPUS = "3"  # of which a node has room for one pod
MANIFESTS = ROOT / "docker" / "kubernetes"
WAITING = """
import os, pathlib, runpy, time
import keras
if os.environ["TFDIST_WORKER_INDEX"] == "1" and os.environ["TFDIST_RESTARTS"] == "0":
    begin, steps = keras.callbacks.CallbackList.on_train_batch_begin, []
    def wait(self, batch, logs=None):
        steps.append(batch)
        if len(steps) >= 3:
            pathlib.Path(os.environ["NOW"]).touch()
            time.sleep({seconds})
        return begin(self, batch, logs)
    keras.callbacks.CallbackList.on_train_batch_begin = wait
runpy.run_path("{script}", run_name="__main__")
"""
TALKING = """
import os, sys, time
print("worker", os.environ["TFDIST_WORKER_INDEX"], sys.argv[1:], len(os.environ["TFDIST_JOB_KEY"]), flush=True)
if os.environ["TFDIST_WORKER_INDEX"] == "1":
    time.sleep(2)
    sys.exit(7)
time.sleep(1000)
"""


class Trial:
    """Submits jobs, and keeps what came of them."""

    def __init__(self, control: Control, nodes: Nodes, folder: Path, definitions: list[Path]) -> None:
        self.control = control
        self.folder = folder
        self.nodes = nodes
        self.has: list[str] = []
        self._definitions = definitions
        self.api = control.client()
        self.core = kubernetes.client.CoreV1Api(self.api)
        self.batch = kubernetes.client.BatchV1Api(self.api)
        self.count = 0
        self._created(control)

    def _created(self, control: Control) -> None:
        """Make a namespace and who may submit there, with the rights that are documented."""
        self.core.create_namespace({"metadata": {"name": NAMESPACE}})
        role = yaml.safe_load((MANIFESTS / "role.yaml").read_text())
        rights = kubernetes.client.RbacAuthorizationV1Api(self.api)
        rights.create_namespaced_role(NAMESPACE, role)
        who = {"kind": "ServiceAccount", "name": "submitter", "namespace": NAMESPACE}
        self.core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": "submitter"}})
        binding = {
            "metadata": {"name": "tfdist-submit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tfdist-submit"},
            "subjects": [who],
        }
        rights.create_namespaced_role_binding(NAMESPACE, binding)
        asked = {"spec": {"expirationSeconds": 36_000}}
        found = self.core.create_namespaced_service_account_token("submitter", NAMESPACE, asked, _preload_content=False)
        token = json.loads(found.data)["status"]["token"]
        self.token = token
        self.configuration = control.configuration("submitter", token=token, namespace=NAMESPACE)
        # which a controller makes
        wait_until(
            lambda: "default" in [one["metadata"]["name"] for one in self.of("service_account")], seconds=SECONDS
        )

    def install(self) -> None:
        """Install the definitions that were given, once."""
        self.has += install(self.api, self._definitions)
        self._definitions = []

    def of(self, kind: str) -> list[Any]:
        """Return the objects of a kind in the namespace."""
        api = self.batch if kind == "job" else self.core
        return listed(lambda **options: getattr(api, f"list_namespaced_{kind}")(NAMESPACE, **options))

    @contextlib.contextmanager
    def started(self, *arguments: object, **variables: str) -> Iterator["subprocess.Popen[str]"]:
        command = [*RUN, *map(str, arguments)]
        with started(command, cwd=self.folder, KUBECONFIG=str(self.configuration), **variables) as process:
            yield process

    def on(self, name: str, *options: object) -> tuple[object, ...]:
        return ("--engine", "kubernetes", "--image", "tfdist:cpu", "--name", name, *options)

    def run(self, *arguments: object, code: int = 0, **variables: str) -> str:
        with self.started(*arguments, **variables) as process:
            return ended(process, code)

    def script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def places(self) -> tuple[Path, Path, tuple[object, ...]]:
        """Return the paths of the next training's result and events, and the arguments of its script."""
        self.count += 1
        result, events = self.folder / f"result{self.count}", self.folder / f"events{self.count}"
        return result, events, (result, self.folder / f"backup{self.count}", "tfdist", "1")

    def pod(self, job: str, index: int) -> Running:
        """Return a pod that runs, once it does."""
        wait_until(lambda: self.nodes.pod(job, index) is not None, seconds=SECONDS)
        found = self.nodes.pod(job, index)
        assert found is not None
        return found

    def preempts(self, node: str) -> None:
        """Have a pod run on a node for some seconds that is more urgent than what tfdist submits."""
        scheduling = kubernetes.client.SchedulingV1Api(self.api)
        scheduling.create_priority_class({"metadata": {"name": "urgent"}, "value": 1000})
        container = {
            "name": "node",
            "image": "tfdist:cpu",
            "args": ["python", "-c", "import time; time.sleep(5)"],
            "resources": {"requests": {"cpu": MOST_CPUS}},
        }
        spec = {
            "priorityClassName": "urgent",
            "restartPolicy": "Never",
            "hostname": "urgent",
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "automountServiceAccountToken": False,
        }
        self.core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": "urgent"}, "spec": spec})

    def removed(self, job: str) -> None:
        """Delete a job, as kubectl does, and look that all that belongs to it goes."""
        with contextlib.suppress(kubernetes.client.ApiException):
            self.batch.delete_namespaced_job(job, NAMESPACE, propagation_policy="Background")
        self.is_gone(job)

    def is_gone(self, job: str) -> None:
        def left() -> list[str]:
            kinds = ("job", "service", "secret", "config_map", "pod")
            return [one["metadata"]["name"] for kind in kinds for one in self.of(kind)
                    if one["metadata"]["name"].startswith(job)]  # fmt: skip

        wait_until(lambda: not left(), seconds=SECONDS)


def what_is_submitted(trial: Trial) -> None:
    """The API server takes all that is made, each kind in full, and nothing that it does not know."""
    trial.install()
    counts: dict[str, int] = {}

    def create(made: dict[str, Any]) -> None:
        api, plural = PLACES[made["kind"]]
        namespaced = "" if made["kind"] == "ClusterTrainingRuntime" else f"/namespaces/{NAMESPACE}"
        path = f"{api}{namespaced}/{plural}?dryRun=All&fieldValidation=Strict"
        made = json.loads(json.dumps(made))
        made["metadata"].pop("namespace", None)
        status, said = trial.control.asked(path, made)
        assert status == 201, said
        status, said = trial.control.asked(path, {**made, "spek": {}})
        assert (status, r"unknown field \"spek\"" in said) == (400, True), (status, said)
        counts[made["kind"]] = counts.get(made["kind"], 0) + 1

    pods = {
        "script": ("script.py", "print('ü')\n"),
        "topology": "topology.kubernetes.io/zone",
        "patch": {"metadata": {"annotations": {"a": "b"}}, "spec": {"nodeSelector": {"gpu": "yes"}}},
    }
    resources = {"cpu": "0.5", "memory": "16Gi", "nvidia.com/gpu": "1"}
    for kind, definition in (
        ("job", ""), ("jobset", "jobsets.jobset.x-k8s.io"), ("trainjob", "trainjobs.trainer.kubeflow.org")
    ):  # fmt: skip
        if definition and definition not in trial.has:
            print(f"not tried, since its definition was not given: {kind}")
            continue
        for more in ({}, {"resources": resources, **(pods if kind != "trainjob" else {})}):
            request = Request(
                name="t" * 40, image="registry/tfdist:cpu", pods=3, arguments=("python", "t.py"), kind=kind,
                restarts=2, secret=("TOKEN",), **more,  # type: ignore[arg-type]
            )  # fmt: skip
            for made in (*objects(request), secret(request, {"TFDIST_JOB_KEY": "0" * 64, "TOKEN": "t"})):
                create(made)
        if kind == "trainjob":
            create(runtime())
    files = [
        path for path in MANIFESTS.rglob("*.yaml") if path.name not in ("kustomization.yaml", "role.yaml", "tfjob.yaml")
    ]
    for path in files:
        for made in yaml.safe_load_all(path.read_text()):
            if made["apiVersion"].startswith("trainer") and "trainjobs.trainer.kubeflow.org" not in trial.has:
                continue
            create(made)
    taken = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"taken with strict validation, and refused with a field more: {taken}", flush=True)
    for kind in ("jobset", "trainjob"):
        if any(name.startswith(f"{kind}s.") for name in trial.has):
            with trial.started(*trial.on("nobody", "--kind", kind, "-n", 2), "-m", "json") as process:
                assert process.stdout is not None
                said = [process.stdout.readline(), process.stdout.readline()]
                assert f"{kind} nobody is submitted" in said[0], said
                assert "0 of 2 pods are there" in said[1], said
                process.send_signal(signal.SIGINT)
                ended(process, 130)
            trial.is_gone("nobody")
            print(f"{kind}: submitted, started and deleted; {said[1].strip()}", flush=True)


def what_is_shown_and_what_ends(trial: Trial) -> None:
    """Lines are followed, an exit code is kept; Ctrl-C, once or twice, leaves nothing; others' deletion is told."""
    talking = trial.script("talking.py", TALKING)
    out = trial.run(*trial.on("lines", "-n", 2), talking, "a b", code=7)
    for worker in range(2):
        assert f"[worker {worker}] worker {worker} ['a b'] 64" in out, out
    assert "worker 1 of 2 failed first" in out, out
    assert "failed first: exit code 7" in out, out
    assert trial.token not in out
    print("exit code 7 of a worker: " + next(line for line in out.splitlines() if "failed first: exit" in line))
    trial.removed("lines")
    sleeping = trial.script("sleeping.py", "import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    deaf = trial.script("deaf.py", f"import signal\nsignal.signal(15, signal.SIG_IGN)\n{sleeping.read_text()}")
    for signals, script in ((1, sleeping), (2, deaf)):
        with trial.started(*trial.on("ctrl-c", "-n", 2, "--grace-seconds", 100), script) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("here\n"):
                    break
            begun = time.monotonic()
            process.send_signal(signal.SIGINT)
            if signals == 2:
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
            out = ended(process, 130)
        trial.is_gone("ctrl-c")
        print(
            f"{signals} Ctrl-C: all is gone after {time.monotonic() - begun:.0f} s\n  {out.splitlines()[0]}", flush=True
        )
    with trial.started(*trial.on("deleted", "-n", 2), sleeping) as process:
        trial.pod("deleted", 1)
        trial.removed("deleted")
        out = ended(process, 143)
    assert "job was deleted" in out, out
    print("a job that is deleted by others: told, exit code 143", flush=True)


def what_cannot_run(trial: Trial) -> None:
    """Check that the reason why pods wait, or cannot be created, is reported once, with the request."""

    def said(name: str, *options: object, until: str) -> list[str]:
        script = trial.script("nothing.py", "print('ran', flush=True)\n")
        with trial.started(*trial.on(name, *options), script) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if until in line:
                    break
            time.sleep(15)  # in which the cluster tries again
            process.send_signal(signal.SIGINT)
            lines += ended(process, 130).splitlines()
        trial.is_gone(name)
        assert len([line for line in lines if until in line]) == 1, lines
        print(next(line for line in lines if until in line).strip(), flush=True)
        return lines

    said("large", "-n", 2, "--cpus-per-worker", 64, until="Insufficient cpu")
    said("gpus", "-n", 2, "--gpus-per-worker", 1, until="Insufficient nvidia.com/gpu")
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.cpu": "1", "requests.memory": "1Gi"}}}
    trial.core.create_namespaced_resource_quota(NAMESPACE, quota)
    wait_until(lambda: trial.of("resource_quota")[0]["status"].get("hard"), seconds=SECONDS)
    said("quota", "-n", 3, "--cpus-per-worker", 1, "--memory-per-worker", "512M", until="exceeded quota")
    said("nothing-asked", "-n", 2, until="failed quota")
    trial.core.delete_namespaced_resource_quota("small", NAMESPACE)
    label = "pod-security.kubernetes.io/enforce"
    trial.core.patch_namespace(NAMESPACE, {"metadata": {"labels": {label: "restricted"}}})
    said("secured", "-n", 2, until="violates PodSecurity")
    trial.core.patch_namespace(NAMESPACE, {"metadata": {"labels": {label: None}}})
    out = trial.run(*trial.on("t", "--namespace", "kube-system"), trial.script("nothing.py", ""), code=1)
    assert "you may not" in out, out
    print(out.strip())
    for kind in ("jobset", "trainjob"):  # unless what they need has been installed before
        if not any(name.startswith(f"{kind}s.") for name in trial.has):
            out = trial.run(*trial.on("t", "--kind", kind), "-m", "json", code=1)
            assert "Install" in out, out
            print(out.strip())


def equal_to_the_bit(trial: Trial) -> None:
    """A job that is submitted has the weights of one on one host, also when a pod is killed, evicted or preempted."""
    for strategy, collectives in (("multi-worker", "native"), ("sharded-data-parallel", "native")):
        options = ("--strategy", strategy, "--collectives", collectives, "-n", 2)
        result, _, words = trial.places()
        trial.run(*options, RESUMABLE, *words)
        local = result.read_text()
        result, _, words = trial.places()
        trial.run(*trial.on("plain"), *options, RESUMABLE, *words)
        assert result.read_text() == local
        trial.removed("plain")
        told = []
        for how in ("killed", "evicted", *(("preempted",) if strategy == "multi-worker" else ())):
            result, events, words = trial.places()
            now = trial.folder / f"now{trial.count}"
            trial.nodes.variables |= {"NOW": str(now), "OWN_BACKUPS": "1"}
            seconds = {"killed": 1000, "evicted": 4, "preempted": 8}[how]  # but for the first there is a next step
            script = trial.script("waiting.py", WAITING.format(script=RESUMABLE, seconds=seconds))
            more: tuple[object, ...] = ("--hang-seconds", 60, "--max-restarts", 1, "--event-file", events)
            if how == "preempted":
                more += ("--cpus-per-worker", MOST_CPUS)
            with trial.started(*trial.on(how), *options, *more, script, *words) as process:
                wait_until(now.exists, seconds=SECONDS)
                pod = trial.pod(how, 1)
                if how == "killed":
                    pod.container.signal(signal.SIGKILL)
                elif how == "preempted":
                    trial.preempts(pod.pod["spec"]["nodeName"])
                else:
                    name = pod.pod["metadata"]["name"]
                    trial.core.create_namespaced_pod_eviction(name, NAMESPACE, {"metadata": {"name": name}})
                ended(process, 0)
            assert result.read_text() == local
            happened = [json.loads(line) for line in events.read_text().splitlines()]
            first, again = (one for one in happened if one["event"] == "stepping")
            assert (first["resumed"], again["lost"]) == (None, 0)
            assert again["resumed"] > 0
            # the launcher that is in the first pod sees a pod that is killed, and ends with one that is taken away
            assert ("seconds" in again) == (how == "killed")
            told.append(f"{how}: steps again {again['time'] - first['time']:.1f} s after it did first, 0 repeated")
            del trial.nodes.variables["OWN_BACKUPS"]
            trial.removed(how)
        print(f"{strategy} {collectives}: one host, two pods; a pod {'; '.join(told)}: equal to the bit", flush=True)


def parameter_servers(trial: Trial) -> None:
    """A chief, workers and a server, each in a pod, have the weights of one host."""
    options = ("--strategy", "parameter-server", "-n", 2, "--parameter-servers", 1)
    variables = {"TFDIST_MAX_STALENESS": "0"}  # so that gradients are added up in an order that is always the same
    result, _, words = trial.places()
    trial.run(*options, RESUMABLE, *words, **variables)
    local = result.read_text()
    result, _, words = trial.places()
    passed = ("--pass-env", *variables)
    trial.run(*trial.on("servers"), *passed, *options, RESUMABLE, *words, **variables)
    assert result.read_text() == local
    trial.removed("servers")
    print("parameter-server: one host, and a pod for each: equal to the bit", flush=True)


def what_policies_do(trial: Trial) -> None:
    """A pod that is killed more often than may be ends the job; two jobs at once do not meet."""
    sleeping = trial.script("sleeping.py", "import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    with trial.started(*trial.on("often", "-n", 2, "--max-restarts", 1), sleeping) as process:
        first = trial.pod("often", 1)
        time.sleep(3)
        first.container.signal(signal.SIGKILL)
        wait_until(lambda: trial.nodes.pod("often", 1) not in (None, first), seconds=SECONDS)
        time.sleep(3)
        trial.pod("often", 1).container.signal(signal.SIGKILL)
        out = ended(process, 137)
    [line] = [line for line in out.splitlines() if "failed first" in line and "pod " in line]
    print(f"killed twice with one restart: {line}", flush=True)
    trial.removed("often")
    script = trial.script("both.py", "import os\nprint('mine is', os.environ['MINE'], flush=True)\n")
    with (
        trial.started(*trial.on("train", "-n", 2, "--pass-env", "MINE"), script, MINE="one") as one,
        trial.started(*trial.on("train-2", "-n", 2, "--pass-env", "MINE"), script, MINE="two") as other,
    ):
        for process, mine in ((one, "one"), (other, "two")):
            out = ended(process, 0)
            assert out.count(f"mine is {mine}") == out.count("mine is") == 2, out
    out = trial.run(*trial.on("train"), script, code=1)
    assert "already exists" in out, out
    trial.batch.delete_namespaced_job("train-2", NAMESPACE, propagation_policy="Background")
    trial.removed("train")  # both, by the beginning of their names
    print(f"two jobs at once: each its own; a third of the same name: {out.strip()}", flush=True)


TRIALS: dict[str, Callable[[Trial], None]] = {
    trial.__name__: trial
    for trial in (
        what_is_shown_and_what_ends, what_cannot_run, what_is_submitted, what_policies_do, equal_to_the_bit,
        parameter_servers,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--etcd", type=Path, default=Path("/usr/bin/etcd"))
    parser.add_argument("--definitions", type=Path, nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="a folder in which logs are kept")
    parser.add_argument("trials", nargs="*", default=list(TRIALS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left then either
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pods = stack.enter_context(network())
        control = stack.enter_context(control_plane(folder, options.binaries, options.etcd))
        api = control.client()
        variables = {**QUIET, "PYTHONPATH": str(ROOT)}
        (folder / "pods").mkdir()
        nodes = Nodes(api, kubernetes.client, pods, folder / "pods", variables)
        stack.enter_context(nodes.serving({"a": CAPACITY, "b": CAPACITY}))
        print(f"{control.version()}; ready after {time.monotonic() - begun:.0f} s", flush=True)
        trial = Trial(control, nodes, folder, options.definitions)
        for name in options.trials:
            TRIALS[name](trial)
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
