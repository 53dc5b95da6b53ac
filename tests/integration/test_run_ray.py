"""`tfdist run --engine ray`: on a real cluster of three nodes on this machine, each with a raylet of its own.

`tests/soak/ray.py` trains on one.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.agents import DEADLINE_SECONDS, agent, alive, finished, told, wait_until
from tests.integration.steppers import STEPPER, done, happened, job
from tests.ray_nodes import ray_nodes

pytest.importorskip("ray")
pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[str]]:
    with ray_nodes(2, 2, 2) as address:
        yield ["--engine", "ray", "--ray-address", address]


def test_ctrl_c_ends_the_job_and_no_command_line_has_the_key(cluster: list[str], script: Any, shared: Path) -> None:
    path = script(
        """
        print(*(os.environ.get(f"TFDIST_{name}") for name in ("WORKER_INDEX", "LOCAL_INDEX", "LOCAL_WORKERS")))
        print([name for name in os.environ if name.startswith("RAY_")], os.environ.get("OMP_NUM_THREADS"), flush=True)
        tell(f"{ME}", f"{os.getpid()} " + os.environ["TFDIST_JOB_KEY"])
        time.sleep(1000)
        """
    )
    with agent(*cluster, "-n", 2, "--pass-env", "SHARED", path, shared=shared) as process:
        pids, keys = zip(*(told(shared, str(worker)).split() for worker in range(2)), strict=True)
        joining = psutil.Process(int(pids[0])).parent()
        assert joining is not None
        lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert not [line for line in lines if keys[0] in line]
        assert "TFDIST_JOB_KEY" not in " ".join(lines)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    assert sorted(out.decode().splitlines()) == [
        f"[worker {worker}] {line}" for worker in range(2) for line in (f"{worker} {worker} 2", "[] None")
    ]
    wait_until(lambda: not any(alive(int(pid)) for pid in (*pids, joining.pid)), "a process is left")


def test_a_raylet_is_killed_and_the_job_goes_on_elsewhere_step_exact(
    cluster: list[str], script: Any, shared: Path
) -> None:
    kill = """
import psutil

def kill(tick):
    if (START, tick) == (0, 5) and ADDRESSES[ME][0].startswith("127.0.0.") and not (SHARED / "killed").exists():
        tell("killed")
        [raylet] = [one for one in psutil.Process().parents() if one.name() == "raylet"]
        raylet.kill()
        time.sleep(1000)

train(20, before=kill)
"""
    path = script(STEPPER.replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"') + kill)
    # of three nodes two have a worker, so at least one of these is not the head
    options = ("-n", 2, "--cpus-per-worker", 2, "--max-restarts", 1, "--pass-env", "SHARED")
    with job(*cluster, *options, path, shared=shared) as process:
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    assert done(shared) == list(range(20))
    [failure] = [one for one in happened(shared) if one["event"] == "failed"]
    assert "HostLostError: the connection to host 127.0.0." in failure["text"]


def test_what_cannot_be_is_one_error_before_anything_is_started(cluster: list[str], script: Any, shared: Path) -> None:
    def error(*arguments: object) -> str:
        code, _, err = finished(*arguments, script("sys.exit('it was started')"), shared=shared)
        assert (code in (1, 2), "Traceback" in err, "it was started" in err) == (True, False, False), err
        return err

    few = error(*cluster, "-n", 2, "--cpus-per-worker", 3)
    assert "2 processes of CPU 3 each are asked for, and the nodes of the cluster have room for 0" in few
    assert "--wait-seconds" in few
    assert "ray start --head" in error("--engine", "ray", "--ray-address", "127.0.0.1:9")
    assert "which chooses the nodes" in error(*cluster, "--hosts", "a,b")
    assert "--cpus-per-worker: for --engine ray" in error("--cpus-per-worker", 1)


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
    assert "# placement group of Ray at nobody.invalid:1, PACK" in out
    assert out.count('{"CPU": 1, "GPU": 1.0, "memory": 1073741824}') == 2
    assert "TFDIST_JOB_KEY" not in out


def test_ray_that_is_not_installed_is_one_error(script: Any, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ray'] = None\n")
    from tests.integration.agents import environment

    environ = environment(shared)
    environ["PYTHONPATH"] = f"{tmp_path}:{environ['PYTHONPATH']}"
    code, _, err = finished("--engine", "ray", script(""), shared=shared, env=environ)
    assert (code, "pip install 'tfdist[ray]'" in err) == (1, True), err
