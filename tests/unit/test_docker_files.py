"""The files of docker/: linters and schemas accept them, and their workers form the intended cluster."""

import json
import os
import re
import stat
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import tfdist
from tfdist.cli.main import COMMANDS
from tfdist.cluster import from_environment

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent
KUBERNETES = sorted(set((DOCKER / "kubernetes").glob("*.yaml")) - {DOCKER / "kubernetes" / "kustomization.yaml"})
SBATCH = DOCKER / "slurm" / "train.sbatch"
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")  # one instruction, one line


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def check(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile, by its name."""
    parts = re.split(r"^FROM .+ AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def last(keyword: str, stage: str) -> str:
    """The last instruction of a kind in a stage, or in what the stage begins with."""
    found = re.findall(rf"^{keyword} (.+)$", stages()[stage], re.MULTILINE)
    parent = re.search(rf"^FROM (\S+) AS {stage}$", DOCKERFILE, re.MULTILINE)
    assert parent
    return found[-1] if found else last(keyword, parent[1])


def test_linters_find_nothing() -> None:
    check(BIN / "hadolint", DOCKER / "Dockerfile")
    check(BIN / "shellcheck", SBATCH)


def test_compose_files_fit_their_schema() -> None:
    files = sorted(DOCKER.glob("compose*.yaml"))
    assert len(files) == 2
    check(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_objects_fit_their_schema(path: Path) -> None:
    thing = load(path)
    if thing["kind"] == "TFJob":  # the operator's own schema is not in the package; what it makes of it, a pod, is
        (worker,) = thing["spec"]["tfReplicaSpecs"].values()
        assert worker["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        assert [one["name"] for one in worker["template"]["spec"]["containers"]] == ["tensorflow"]
        template = worker["template"]
        thing = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "of-tfjob"}, "template": template}
    kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)
    thing["spek"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)


def test_the_workers_of_compose_find_each_other() -> None:
    services = load(DOCKER / "compose.yaml")["services"]
    for index, (name, service) in enumerate(services.items()):
        cluster = from_environment(service["environment"])
        assert (cluster.num_workers, cluster.worker_index) == (len(services), index)
        assert cluster.addresses == tuple(f"{one}:2222" for one in services)
        assert cluster.addresses[index].startswith(name)
    assert services.keys() == load(DOCKER / "compose.gpu.yaml")["services"].keys()


def test_the_pods_of_the_job_find_each_other() -> None:
    job, service = load(DOCKER / "kubernetes" / "job.yaml"), load(DOCKER / "kubernetes" / "service.yaml")
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completions"] == spec["parallelism"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    for index in range(spec["completions"]):  # what Kubernetes adds
        added = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"}
        cluster = from_environment({**added, **{one["name"]: one["value"] for one in container["env"]}})
        assert cluster.worker_index == index
        assert cluster.addresses == tuple(f"{name}-{i}.{pod['subdomain']}:2222" for i in range(spec["completions"]))
    assert container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"] == 2222


@pytest.mark.parametrize("name", ["job.yaml", "tfjob.yaml"])
def test_pods_keep_their_backups_and_have_shared_memory(name: str) -> None:
    spec = load(DOCKER / "kubernetes" / name)["spec"]
    pod = (spec.get("template") or spec["tfReplicaSpecs"]["Worker"]["template"])["spec"]
    (container,) = pod["containers"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    at = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    claim = load(DOCKER / "kubernetes" / "backup.yaml")["metadata"]["name"]
    assert at["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert at["/backup"]["persistentVolumeClaim"]["claimName"] == claim
    assert str(pod["securityContext"]["runAsUser"]) == last("USER", "gpu").split(":")[0]
    assert (ROOT / container["args"][1]).is_file()


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (143, True)])
def test_the_batch_script_starts_the_workers_and_queues_itself_again(tmp_path: Path, code: int, again: bool) -> None:
    said = tmp_path / "said"
    stubs = {
        "srun": f'printf "srun %s\\n" "$TFDIST_STRATEGY" >>"{said}"; shift; exec "$@"',
        "apptainer": f'printf "%s\\n" "$*" >>"{said}"; exit {code}',
        "scontrol": f'printf "scontrol %s\\n" "$*" >>"{said}"',
    }
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "TFDIST_BACKUP": str(tmp_path / "b c")}
    done = subprocess.run(["bash", SBATCH], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, done.stderr
    lines = said.read_text().splitlines()
    assert lines[0] == "srun multi-worker"
    assert (
        f"--bind {tmp_path}/b c:/backup {tmp_path}/tfdist.sif python strategies/multi_worker_mirrored/train.py"
        in lines[1]
    )
    assert lines[2:] == (["scontrol requeue 7"] if again else [])
    assert (tmp_path / "b c").is_dir()


def test_every_image_is_run_by_a_user_with_a_number_who_is_not_root() -> None:
    for target in ("cpu", "gpu", "notebook"):
        user = re.fullmatch(r"(\d+):(\d+)", last("USER", target))
        assert user, target
        assert int(user[1]) > 0
        assert int(user[2]) > 0


def test_any_user_can_write_in_the_home_of_an_image() -> None:
    runtime = stages()["runtime"]
    (home,) = re.findall(r"^ENV .*\bHOME=(\S+)", runtime, re.MULTILINE)
    assert f"&& chmod 1777 {home} " in runtime


def test_an_image_runs_any_command_below_a_process_that_passes_signals_on() -> None:
    for target in ("cpu", "gpu", "notebook"):
        assert json.loads(last("ENTRYPOINT", target)) == ["/usr/bin/tini", "--"]
        assert isinstance(json.loads(last("CMD", target)), list)  # the exec form: no shell in between
        assert json.loads(last("HEALTHCHECK", target).partition("CMD ")[2])
    assert json.loads(last("HEALTHCHECK", "gpu").partition("CMD ")[2])[1] in COMMANDS


def test_the_label_and_the_base() -> None:
    for target in ("cpu", "gpu"):  # last, for they change with every build
        assert last("ARG", target) == "CREATED=unknown"
        assert f"ARG VERSION={tfdist.__version__}\n" in stages()[target].rpartition("\nCOPY ")[2]
    assert re.findall(r"^FROM (\$\{BASE\}) AS", DOCKERFILE, re.MULTILINE) == ["${BASE}"]


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    let_through = [line[1:] for line in lines if line.startswith("!")]
    copied = {
        source
        for arguments in re.findall(r"^COPY (?!.*--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in [word for word in arguments.split() if not word.startswith("--")][:-1]
    } | set(re.findall(r"type=bind,source=(\S+?),", DOCKERFILE))
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in let_through), source
    assert all(any(fnmatch(source, pattern) for source in copied) for pattern in let_through)
