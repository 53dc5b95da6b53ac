"""The plan of a job with parameter servers: who gets which environment and command, and what each reads from it."""

import json
from pathlib import Path

import pytest

from tfdist.cluster import TaskId, from_environment
from tfdist.jobs import LaunchConfig, WorkerSpec
from tfdist.jobs.placement.local_placement import free_addresses
from tfdist.jobs.plan.job_plan import WORKER_FILE, plan
from tfdist.jobs.plan.roles import tasks
from tfdist.processes.guardian import sessions_left

COMMON = {"TFDIST_JOB_ID", "PYTHONUNBUFFERED", "TF_CONFIG", "TFDIST_STACKS_FILE"}
CHIEF = "127.0.0.1:4001"
WORKERS = ("127.0.0.1:4002", "127.0.0.1:4003")
SERVERS = ("127.0.0.1:4004", "127.0.0.1:4005")


def planned(restarts: int = 0, **changes: object) -> tuple[WorkerSpec, ...]:
    config = LaunchConfig(
        **{  # type: ignore[arg-type]
            "target": "train.py",
            "arguments": ("-n", "a b"),
            "workers": 2,
            "strategy": "parameter-server",
            "parameter_servers": 2,
            "max_restarts": 3,
            **changes,
        }
    )
    addresses = [("127.0.0.1", port) for port in range(4001, 4001 + len(tasks(config)))]
    where = {"job_id": "f00", "directory": Path("/d"), "python": "/bin/py", "agent_pid": 7}
    return plan(config, addresses=addresses, restarts=restarts, **where)  # type: ignore[arg-type]


def test_the_chief_runs_the_script_and_the_others_serve() -> None:
    chief, *others = planned(restarts=2, replicas_per_worker=3)
    assert [str(spec.task) for spec in (chief, *others)] == ["chief", "worker 0", "worker 1", "ps 0", "ps 1"]
    assert [spec.index for spec in (chief, *others)] == [0, 1, 2, 3, 4]
    assert chief.argv == ("/bin/py", str(WORKER_FILE), "--parent", "7", "--script", "train.py", "-n", "a b")
    own = {"TFDIST_STRATEGY", "TFDIST_ERROR_FILE", "TFDIST_RESTARTS", "TFDIST_REPLICAS_PER_WORKER"}
    own |= {"TFDIST_PROGRESS_FILE", "TFDIST_TASKS_FILE", "TFDIST_ENVIRONMENT_FILE"}
    assert chief.environment.keys() == COMMON | own
    assert chief.environment["TFDIST_ERROR_FILE"] == str(chief.error_file)
    assert chief.environment["TFDIST_RESTARTS"] == "2"
    assert planned(max_restarts=0)[0].environment["TFDIST_RESTARTS"] == "0"
    for spec in others:
        assert spec.argv == ("/bin/py", str(WORKER_FILE), "--parent", "7", "--task")
        assert spec.environment.keys() == COMMON
    assert WORKER_FILE.is_file()


def test_no_start_reads_what_another_one_recorded() -> None:
    files = [spec.error_file for restarts in range(2) for spec in planned(restarts)[:1]]
    assert len(set(files)) == 2
    assert len({spec.error_file for spec in planned()}) == 5


@pytest.mark.parametrize("index", range(5))
def test_everybody_reads_its_place(index: int) -> None:
    spec = planned()[index]
    config = json.loads(spec.environment["TF_CONFIG"])
    assert config["cluster"] == {"chief": [CHIEF], "worker": list(WORKERS), "ps": list(SERVERS)}
    outer = {"TFDIST_WORKERS": "a:1,b:1", "TFDIST_WORKER_INDEX": "1", "TFDIST_LOCAL_WORKERS": "2"}
    outer |= {"TFDIST_LOCAL_INDEX": "1", "TFDIST_JOB_ID": "outer", "TFDIST_ERROR_FILE": "/of/somebody", "HOME": "/h"}
    environ = spec.environ(outer)
    assert environ["HOME"] == "/h"
    assert environ.get("TFDIST_ERROR_FILE") == (str(spec.error_file) if index == 0 else None)
    expected = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1)][index]
    for variables in (environ, {"TF_CONFIG": environ["TF_CONFIG"]}):
        cluster = from_environment(variables)
        assert cluster.task == TaskId(type=expected[0], index=expected[1])
        assert (cluster.num_workers, cluster.addresses, cluster.parameter_servers) == (2, WORKERS, SERVERS)
        assert (cluster.chief, cluster.is_chief) == (CHIEF, index == 0)
        assert cluster.worker_index == {1: 0, 2: 1}.get(index, -1)
    assert from_environment(environ).job_id == "f00"


def test_one_worker_and_one_server() -> None:
    specs = planned(workers=1, parameter_servers=1, strategy=None)
    assert [str(spec.task) for spec in specs] == ["chief", "worker 0", "ps 0"]
    assert "TFDIST_STRATEGY" not in specs[0].environment
    assert from_environment(specs[0].environment).num_workers == 1


def test_no_address_of_an_earlier_start_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tfdist.jobs.placement.local_placement.free_ports", lambda count, host: list(range(4001, 4001 + count))
    )

    def ports(count: int, *but: str) -> list[int]:
        return [port for _, port in free_addresses(count, "n1", but=but)]

    assert ports(3) == [4001, 4002, 4003]
    assert ports(3, "n1:4001", "n1:4003", "n1:9") == [4002, 4004, 4005]


def test_the_guardian_forgets_sessions_of_which_nothing_is_left() -> None:
    assert sessions_left([41, 42, -41, 43, -44]) == {42, 43}
    assert sessions_left([41, -41, 41]) == {41}
