"""`tfdist run --engine kubernetes`, on what stands for a cluster (`kubernetes_cluster`): its pods are processes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.integration import light
from tests.integration.agents import (
    DEADLINE_SECONDS,
    ROOT,
    TRIAL,
    agent,
    environment,
    finished,
    own_lines,
    says,
    searched,
    told,
    wait_until,
)
from tests.integration.conftest import QUIET, THREADS
from tests.integration.forks import OPTIMIZED, Forks
from tests.integration.kubernetes_cluster import FakeCluster, serving
from tests.integration.steppers import wait_for_event
from tests.integration.test_run_hosts import ON_HOSTS
from tests.integration.test_run_recovers import resumable, run
from tests.pods import network, why_not
from tfdist.cli.main import main

STEMS = ("train-0", "train-1", "train-node-0-0", "train-node-0-1")
NAMES = {f"10.79.0.{number}": (f"{stem}.train", stem) for number, stem in enumerate(STEMS, start=1)}
# as cases/resumable.py, whose second worker waits at its third step until its pod is killed
KILLING = """
import os, pathlib, runpy, sys, time
import keras
if os.environ["TFDIST_WORKER_INDEX"] == "1" and os.environ["TFDIST_RESTARTS"] == "0":
    train_step, steps = keras.callbacks.CallbackList.on_train_batch_begin, []
    def wait(self, batch, logs=None):
        steps.append(batch)
        if len(steps) == 3:
            pathlib.Path(os.environ["SHARED"], "now").touch()
            time.sleep(1000)
        return train_step(self, batch, logs)
    keras.callbacks.CallbackList.on_train_batch_begin = wait
sys.path.insert(0, "{cases}")
runpy.run_path("{cases}/resumable.py", run_name="__main__")
"""
OPTIONS = ("--engine", "kubernetes", "--image", "tfdist:cpu", "--name", "train")

needs_pods = pytest.mark.skipif("why_not()", reason=why_not())


@pytest.fixture
def cluster(shared: Path, tmp_path: Path) -> FakeCluster:
    (tmp_path / "pods").mkdir()
    path = os.pathsep.join([light.STARTING, str(ROOT)])
    variables = {"PYTHONPATH": path, "SHARED": str(shared), "TMPDIR": str(tmp_path / "tmp")}
    return FakeCluster(tmp_path / "pods", variables=variables)


@pytest.fixture
def with_pods(cluster: FakeCluster) -> Iterator[FakeCluster]:
    with network(NAMES) as found:
        cluster.space = found.space
        yield cluster


@needs_pods
def test_lines_the_first_failure_and_its_exit_code(with_pods: FakeCluster, script: Any, shared: Path) -> None:
    path = script(
        """
        print(os.environ["TFDIST_WORKERS"].count(".train:"), sys.argv[1:], os.environ["TOKEN"], flush=True)
        print("JOB_COMPLETION_INDEX" in os.environ, len(os.environ["TFDIST_JOB_KEY"]), flush=True)
        tell(f"key {ME}", os.environ["TFDIST_JOB_KEY"])
        wait_told(f"key {1 - ME}")
        sys.exit(7) if ME else time.sleep(1000)
        """
    )
    with serving(with_pods) as variables:
        env = environment(shared, **variables, TOKEN="of mine")
        options = (*OPTIONS, "-n", 2, "--pass-env", "TOKEN", path, "--image", "a b")
        code, out, err = finished(*options, shared=shared, env=env)
    assert (code, "job train is submitted" in err) == (7, True), err + out
    for worker in range(2):
        assert own_lines(out, worker)[:2] == ["2 ['--image', 'a b'] of mine", "False 64"]
    assert "worker 1 of 2 failed first" in out, out
    assert says(err, f"pod {with_pods.pod(0).name} ", "node-0 failed first: ", " 7")
    key = with_pods.objects["secrets", "train"]["stringData"]["TFDIST_JOB_KEY"]
    assert len(key) == 64
    assert key not in {told(shared, "key 0"), told(shared, "key 1")}  # workers have one that follows from it
    assert key not in out + err
    rest = [one for (plural, _), one in with_pods.objects.items() if plural != "jobs"]
    assert len(rest) == 3
    assert all(one["metadata"]["ownerReferences"][0]["kind"] == "Job" for one in rest)


@pytest.mark.quick
@needs_pods
def test_a_trial_of_a_search_is_a_job_of_its_own(with_pods: FakeCluster, script: Any, shared: Path) -> None:
    options = ("--engine", "kubernetes", "--slots", 1, "--trials", 1)
    with serving(with_pods) as variables:
        env = environment(shared, **variables)
        (log,) = searched(
            *options, "--run-options", "--image tfdist:cpu --name train", script(TRIAL), shared=shared, env=env
        )
    assert "job train is submitted" in log


@needs_pods
def test_pods_that_are_killed_or_taken_away_are_replaced_and_no_step_is_lost_or_repeated(
    with_pods: FakeCluster, script: Any, shared: Path
) -> None:
    path = script(ON_HOSTS[""])
    state = shared / "state.json"

    def more_steps() -> int:
        """Wait until there are some more, by workers that began after what was done last."""
        before = len(json.loads(state.read_text())) if state.exists() else 0
        wait_until(lambda: state.exists() and len(json.loads(state.read_text())) > before + 3, "no step is done")
        return before

    def replaced(index: int, uid: str) -> bool:
        return with_pods.pod(index).value["metadata"]["uid"] != uid

    with serving(with_pods) as variables:
        options = (*OPTIONS, "-n", 2, "--max-restarts", 3, path)
        with agent(*options, shared=shared, env=environment(shared, **variables)) as process:
            for index, number in ((1, signal.SIGKILL), (1, signal.SIGTERM), (0, signal.SIGTERM), (0, signal.SIGKILL)):
                more_steps()
                pod = with_pods.pod(index)
                pod.signal(number)
                wait_until(lambda: replaced(index, pod.value["metadata"]["uid"]), f"pod {index} is not replaced")  # noqa: B023
            more_steps()
            (shared / "enough").touch()
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, (out, err)
    steps = json.loads(told(shared, "done 0"))
    assert steps == list(range(len(steps)))


@needs_pods
def test_ctrl_c_deletes_the_job_whose_workers_save(with_pods: FakeCluster, script: Any, shared: Path) -> None:
    path = script(ON_HOSTS[""])
    with serving(with_pods) as variables:
        more = ("--event-file", shared / "events", "--trace", shared / "trace", "--export", f"html:{shared / 'page'}")
        options = (*OPTIONS, "--kind", "jobset", "-n", 2, *more, path)
        with agent(*options, shared=shared, env=environment(shared, **variables)) as process:
            wait_for_event(shared, "stepping")  # the launcher knows that there is something to stop before
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert (process.returncode, b"SIGINT: the job is deleted" in err) == (130, True), err
        assert not with_pods.objects
    assert b"\x1e" not in out
    # the first pod, whose /dev/shm is its own, has written both
    assert len(json.loads((shared / "trace").read_text())["traceEvents"]) > 4
    assert (shared / "page").read_text().startswith("<meta charset")
    assert told(shared, "halted 0 0") == told(shared, "halted 0 1")


@pytest.mark.quick
@needs_pods
def test_ctrl_c_again_kills_the_pods(with_pods: FakeCluster, script: Any, shared: Path) -> None:
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell(f'here {ME}')\ntime.sleep(1000)")
    with_pods.variables["TMPDIR"] = str(with_pods.folder)  # what is killed leaves files, which go with a pod
    with serving(with_pods) as variables:
        options = (*OPTIONS, "-n", 2, "--grace-seconds", 500, path)
        with agent(*options, shared=shared, env=environment(shared, **variables)) as process:
            for worker in range(2):
                told(shared, f"here {worker}")
            process.send_signal(signal.SIGINT)
            wait_until(lambda: "deletionTimestamp" in with_pods.objects["jobs", "train"]["metadata"], "is not deleted")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert (process.returncode, err.count(b"SIGINT: the job is deleted; its pods are killed")) == (130, 1), err
        assert not with_pods.objects


# above, the same with scripts that count steps; test_run_recovers.py and test_run_hosts_training.py have trainings
@pytest.mark.release
@needs_pods
def test_a_training_in_pods_goes_on_where_one_was_killed_and_equals_that_on_one_host(
    with_pods: FakeCluster, forking: Forks, tmp_path: Path, shared: Path
) -> None:
    strategy = ["--strategy", "multi-worker", "--collectives", "native", "-n", "2"]
    # graphs are optimized as in the pods, where nothing is a fork of the tests
    run(forking, tmp_path, *strategy, *resumable(tmp_path, "one host"), **{OPTIMIZED: "1"})
    (tmp_path / "own.py").write_text(KILLING.format(cases=str(ROOT / "tests/integration/cases")))
    with_pods.variables |= {**QUIET, **THREADS, "PYTHONPATH": light.python_path(ROOT), "OWN_BACKUPS": "1"}
    _, *arguments = resumable(tmp_path, "pods")
    options = (*OPTIONS, *strategy, "--hang-seconds", "60", "--max-restarts", "1", tmp_path / "own.py", *arguments)
    with serving(with_pods) as variables:
        env = environment(shared, **variables)
        with agent(*options, shared=shared, env=env) as process:
            told(shared, "now")
            with_pods.pod(1).signal(signal.SIGKILL)
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, (out, err)
    assert (tmp_path / "pods.json").read_text() == (tmp_path / "one host.json").read_text()


def submitted(*options: object, **variables: str) -> tuple[int, str]:
    """Submit in this process, which then has imported the client once; return the exit code, and all that is said."""
    done = CliRunner().invoke(main, ["run", *map(str, (*OPTIONS, *options))], env=variables)
    return done.exit_code, done.output


@pytest.mark.quick
def test_what_waits_says_why_and_one_that_is_deleted_by_others_ends(
    cluster: FakeCluster, script: Any, shared: Path
) -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    cluster.waits = {"phase": "Pending", "conditions": [condition]}
    with serving(cluster) as variables:
        options = (*OPTIONS, "-n", 2, "--gpus-per-worker", 64, script(""))
        with agent(*options, shared=shared, env=environment(shared, **variables)) as process:
            assert process.stderr is not None
            assert b"is submitted" in process.stderr.readline()
            said = process.stderr.readline().decode()
            assert f"of 2 pods wait: {message}" in said
            assert said.endswith(" nvidia.com/gpu 64\n")
            cluster.delete("jobs", "train")
            _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 143
    assert b"deleted" in err.splitlines()[-1]


@pytest.mark.quick
def test_what_cannot_be_made_and_a_server_that_is_out_are_told_once(
    cluster: FakeCluster, script: Any, shared: Path
) -> None:
    def asked_again(what: str) -> None:
        before = len(cluster.asked)
        wait_until(lambda: sum(what in one for one in cluster.asked[before:]) > 2, "it is not asked again")

    cluster.complaint = "exceeded quota: small, requested: cpu=2, used: cpu=1, limited: cpu=2"
    with serving(cluster) as variables:
        options = (*OPTIONS, "-n", 2, "--cpus-per-worker", 2, script(""))
        with agent(*options, shared=shared, env=environment(shared, **variables)) as process:
            asked_again("/events?")
            process.send_signal(signal.SIGUSR1)
            asked_again("/jobs/train")
            cluster.outage = "etcdserver: request timed out"
            asked_again("/jobs/train")
            cluster.outage = ""
            asked_again("/jobs/train")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=DEADLINE_SECONDS)
    lines = err.decode().splitlines()[1:]
    assert (process.returncode, len(lines)) == (130, 5), lines
    assert lines.pop(1).endswith("exec POD -- kill -USR1 1")
    assert lines[0].startswith("tfdist run: 0 of 2 pods ")
    assert f'pods "train-..." is forbidden: {cluster.complaint}' in lines[0]
    assert lines[0].endswith(" cpu 2")
    assert lines[1].endswith("etcdserver: request timed out")
    assert lines[2] == lines[0]


@pytest.mark.quick
def test_what_cannot_be_submitted_is_one_error_and_leaves_nothing(
    cluster: FakeCluster, script: Any, tmp_path: Path
) -> None:
    def error(*options: object, **variables: str) -> str:
        code, said = submitted(*options, script(""), **variables)
        assert code in (1, 2), said
        wait_until(lambda: not cluster.objects, "something is left")
        return said

    with serving(cluster) as variables:
        cluster.refuses = {"secrets": (403, 'secrets is forbidden: User "u" cannot create'), "jobsets": (404, "no")}
        assert "secrets is forbidden" in error(**variables)
        assert "Install JobSet" in error("--kind", "jobset", **variables)
        cluster.refuses = {"jobs": (409, 'jobs.batch "train" already exists')}
        assert says(error(**variables), 'jobs.batch "train" already exists', " --name")
        cluster.refuses = {"jobsets": (404, 'namespaces "team" not found')}
        assert "Install JobSet" not in error("--kind", "jobset", **variables)
    assert "does not answer" in error(**variables)
    assert "finds no cluster" in error(KUBECONFIG=str(tmp_path / "missing"))
