"""`tfdist run --engine ray`: on a real cluster of two nodes on this machine, each with a raylet of its own.

`tests/soak/ray.py` trains on one.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.agents import DEADLINE_SECONDS, TRIAL, alive, finished, says, searched, told, wait_until
from tests.integration.steppers import STEPPER, done, happened, job, wait_for_event
from tests.integration.test_run_resize import sizes
from tests.ray_nodes import files_of, ray_nodes
from tests.refusals import refused
from tfdist.engines.ray import FailureConfig, RunConfig, ScalingConfig, Trainer
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.jobs.plan.host_plan import NoRoomError

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[str]]:
    with ray_nodes(1, 1) as address:
        yield ["--engine", "ray", "--ray-address", address]


def test_a_function_is_called_on_nodes_and_its_result_comes_back(
    cluster: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster[-1])

    def train(config: dict[str, Any]) -> dict[str, Any]:
        import os
        import time

        from tfdist.cluster import from_environment
        from tfdist.engines.ray import get_checkpoint, report

        me, again = from_environment().worker_index, os.environ["TFDIST_RESTARTS"] == "1"
        reported = os.path.join(config["shared"], "reported")
        if not again and me == 1:
            while not os.path.exists(reported):
                time.sleep(0.02)
            raise ValueError("once")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"  # the node's only one
        last = get_checkpoint()
        assert (last is not None) == again
        saved = f"saved by {me}"  # both are in one folder
        os.mkdir(saved)
        report({"loss": 0.5 if again else 1.0, "worker": me}, None if me else saved)
        os.rmdir(saved)
        if not again:
            open(reported, "w").close()
            time.sleep(1000)
        return {"workers": from_environment().num_workers, "folder": os.environ["TFDIST_CALL_FOLDER"]}

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    trainer = Trainer(
        train_fn=train,
        train_loop_config={"shared": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(name="ü", storage_path="..", failure_config=FailureConfig(max_failures=1)),
        strategy=None,
    )
    result = trainer.fit()
    folder = result.return_value.pop("folder")
    assert (result.return_value, result.path) == ({"workers": 2}, "../ü")
    assert result.metrics == {"loss": 0.5, "worker": 0}
    assert [(one["loss"], one["checkpoint_dir_name"]) for one in result.history] == [
        (1.0, "checkpoint_000000"),
        (0.5, "checkpoint_000001"),
    ]
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).is_dir()
    assert not Path(folder).exists()
    events = [json.loads(line)["event"] for line in (tmp_path / "ü" / "events.jsonl").read_text().splitlines()]
    assert events.count("failed") == 1
    with refused(ConfigTypeError, name="scaling_config"):
        Trainer(train_fn=train, scaling_config={"num_workers": 2}).fit()
    (tmp_path / "file").write_text("x")
    with refused(ConfigError, name="storage_path", received=repr(str(tmp_path / "file"))):
        Trainer(train_fn=train, run_config=RunConfig(storage_path=str(tmp_path / "file"))).fit()
    many = ScalingConfig(num_workers=3)
    with refused(NoRoomError, mentions=("3 processes of CPU 1 ", "--wait-seconds")) as caught:
        Trainer(train_fn=train, train_loop_config={}, scaling_config=many, strategy=None).fit()
    assert caught.value.room == 2  # type: ignore[attr-defined]


def test_a_raylet_is_killed_the_job_goes_on_with_fewer_workers_step_exact_and_ctrl_c_ends_it(
    cluster: list[str], script: Any, shared: Path
) -> None:
    kill = """
import psutil

def kill(tick):
    if (START, tick, ADDRESSES[ME][0]) == (0, 5, "127.0.0.2"):
        [raylet] = [one for one in psutil.Process().parents() if one.name() == "raylet"]
        raylet.kill()
        time.sleep(1000)

print([name for name in os.environ if name.startswith("RAY_")], os.environ.get("OMP_NUM_THREADS"))
print("sees", os.environ["CUDA_VISIBLE_DEVICES"])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
train(20, before=kill)
tell("end", f"{os.getpid()} {os.getppid()} " + os.environ["TFDIST_JOB_KEY"])
time.sleep(1000)
"""
    path = script(STEPPER.replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"') + kill)
    options = ("-n", 2, "--min-workers", 1, "--max-restarts", 1, "--pass-env", "SHARED")
    with job(*cluster, *options, path, shared=shared) as process:
        pid, host_agent, key = told(shared, "end").split()
        secrets = {key, psutil.Process(int(host_agent)).environ()["TFDIST_JOB_KEY"]}
        assert len(secrets) == 2
        lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert not [line for line in lines if any(secret in line for secret in secrets)]
        assert "TFDIST_JOB_KEY" not in " ".join(lines)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130, err
    assert done(shared) == list(range(20))
    [failure] = [one for one in happened(shared) if one["event"] == "failed"]
    assert says(failure["text"], "HostLostError: ", "host 127.0.0.2")
    assert sizes(shared) == [2, 1]
    assert {line.partition("] ")[2] for line in out.decode().splitlines()} == {"[] None", "sees ", "set()"}
    wait_until(lambda: not any(alive(int(one)) for one in (pid, host_agent)), "a process is left")
    written = {path: path.read_bytes() for path in files_of(cluster[-1])}
    assert any(happened(shared)[0]["job"].encode() in text for text in written.values()), "Ray's logs are elsewhere"
    forms = [form for secret in secrets for form in (secret.encode(), bytes.fromhex(secret))]
    assert not [path for path, text in written.items() if any(form in text for form in forms)], "a file has the key"


REMOVE = """
import sys
import ray
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
ray.init(address=sys.argv[1], log_to_driver=False)
made = {one["name"]: name for name, one in placement_group_table().items()}
remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(made[sys.argv[2]])))
"""


def test_a_job_whose_places_somebody_else_takes_away_says_so(cluster: list[str], script: Any, shared: Path) -> None:
    path = script("tell('here')\ntime.sleep(1000)")
    with job(*cluster, "-n", 1, "--pass-env", "SHARED", path, shared=shared) as process:
        told(shared, "here")
        name = f"tfdist-{wait_for_event(shared, 'started')['job']}"
        subprocess.run([sys.executable, "-c", REMOVE, cluster[-1], name], check=True, timeout=DEADLINE_SECONDS)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1, err
    assert err.count(b"lost the actor on ") == 1, err


def test_a_trial_of_a_search_is_a_job_of_ray(cluster: list[str], script: Any, shared: Path) -> None:
    options = (*cluster[:2], "--run-options", " ".join([*cluster[2:], "--pass-env SHARED"]), "--slots", 1)
    (log,) = searched(*options, "--trials", 1, script(TRIAL), shared=shared)
    assert "at " in log


def test_what_cannot_be_is_one_error_before_anything_is_started(cluster: list[str], script: Any, shared: Path) -> None:
    def error(*arguments: object) -> str:
        code, _, err = finished(*arguments, script("sys.exit('it was started')"), shared=shared)
        assert (code in (1, 2), "Traceback" in err, "it was started" in err) == (True, False, False), err
        return err

    assert "ray start --head" in error("--engine", "ray", "--ray-address", "127.0.0.1:9")
    assert "chooses the nodes" in error(*cluster, "--hosts", "a,b")
    assert "--cpus-per-worker: for --engine" in error("--cpus-per-worker", 1)


def test_dry_run_shows_the_placement_group_and_reaches_nobody(script: Any, shared: Path) -> None:
    options = (
        "--engine",
        "ray",
        "--ray-address",
        "nobody.invalid:1",
        "--gpus-per-worker",
        1,
        "--memory-per-worker",
        "1G",
    )
    code, out, err = finished("--dry-run", *options, "-n", 2, script(""), shared=shared)
    assert (code, err) == (0, "")
    assert says(out, "# placement group", "nobody.invalid:1, PACK")
    assert out.count('{"CPU": 1, "GPU": 1.0, "memory": 1073741824}') == 2
    assert "TFDIST_JOB_KEY" not in out


def test_ray_that_is_not_installed_is_one_error(script: Any, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ray'] = None\n")
    from tests.integration.agents import environment

    environ = environment(shared)
    environ["PYTHONPATH"] = f"{tmp_path}:{environ['PYTHONPATH']}"
    code, _, err = finished("--engine", "ray", script(""), shared=shared, env=environ)
    assert (code, "pip install 'tfdist[ray]'" in err) == (1, True), err


def test_what_asks_ray_for_something_after_its_end_starts_no_cluster() -> None:
    """A thread that looks after actors may ask once more when the driver has let go of Ray."""
    asks = """
from tfdist.errors import TfdistError
from tfdist.jobs.launchers.ray import ray_driver

try:
    ray_driver.connect("127.0.0.1:1")  # nobody is there
except TfdistError:
    import ray

    try:
        ray.nodes()
    except Exception as error:
        print(type(error).__name__, ray.is_initialized())
"""
    ran = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert ran.stdout == "RaySystemError False\n", ran.stderr
