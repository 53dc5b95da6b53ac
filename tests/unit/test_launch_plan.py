"""Requests and plans: what a request may be, and which environment and command it gives every worker."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tfdist.cli.run_command import described
from tfdist.cluster import from_environment, job_key
from tfdist.errors import ConfigError
from tfdist.jobs import LaunchConfig, WorkerSpec
from tfdist.jobs.plan.host_plan import Remote, parse_hosts
from tfdist.jobs.plan.job_plan import WORKER_FILE, plan
from tfdist.variables import JOB_KEY, SHARES

COMMON = {"TFDIST_JOB_ID", "TFDIST_WORKERS", "TFDIST_WORKER_INDEX", "TFDIST_LOCAL_INDEX", "TFDIST_LOCAL_WORKERS"}
COMMON |= {"TFDIST_ERROR_FILE", "TFDIST_PROGRESS_FILE", "TFDIST_STACKS_FILE", "PYTHONUNBUFFERED"}
ELASTIC = {"TFDIST_RESTARTS", "TFDIST_MEMORY_DIR", "TFDIST_ENVIRONMENT_FILE"}


def planned(config: LaunchConfig) -> tuple[WorkerSpec, ...]:
    addresses = [("127.0.0.1", port) for port in range(4001, 4001 + config.workers)]
    return plan(config, addresses=addresses, job_id="f00", directory=Path("/d"), python="/bin/py", agent_pid=7)


def test_one_worker() -> None:
    (spec,) = planned(LaunchConfig(target="a b.py", arguments=("-n", "", "x y")))
    assert spec.argv == ("/bin/py", str(WORKER_FILE), "--parent", "7", "--script", "a b.py", "-n", "", "x y")
    assert spec.environment.keys() == COMMON
    assert spec.environ({"TF_CONFIG": "of somebody", "HOME": "/h"}) == {"HOME": "/h", **spec.environment}


@pytest.mark.parametrize("change", [{"max_restarts": 1}, {"max_workers": 3}])
def test_workers_that_may_be_started_again(change: dict[str, Any]) -> None:
    config = LaunchConfig(target="train.py", workers=2, **change)
    more: dict[str, Any] = {
        "job_id": "f00",
        "directory": Path("/d"),
        "python": "py",
        "agent_pid": 7,
        "memory": Path("/m"),
    }
    first, again = (
        plan(config, addresses=[("127.0.0.1", 4001), ("127.0.0.1", 4002)], restarts=restarts, **more)
        for restarts in (0, 2)
    )
    assert first[1].environment.keys() == COMMON | ELASTIC | {"TF_CONFIG"}
    assert again[1].environment["TFDIST_RESTARTS"] == "2"
    assert again[1].environment["TFDIST_MEMORY_DIR"] == first[0].environment["TFDIST_MEMORY_DIR"] == "/m/state"
    for name in ("TFDIST_ERROR_FILE", "TFDIST_PROGRESS_FILE"):
        assert first[1].environment[name] != again[1].environment[name], "of an earlier start, read again"


def test_variables_of_the_caller_reach_all_and_change_nothing_that_the_job_is_made_of() -> None:
    given = {"OMP_NUM_THREADS": "1", "TFDIST_WORKERS": "elsewhere:1"}
    plain, changed = (planned(LaunchConfig(target="train.py", workers=2, environment=e)) for e in ({}, given))
    for before, after in zip(plain, changed, strict=True):
        assert after.environment == {**before.environment, "OMP_NUM_THREADS": "1"}


HOSTS = Remote(hosts=parse_hosts("a:2"))


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"workers": 1}, set()),
        ({}, {"TF_CONFIG"}),
        ({"monitor": True}, {"TF_CONFIG", "TFDIST_MONITOR_DIR"}),
        ({"remote": HOSTS}, {"TF_CONFIG"}),
        ({"max_restarts": 1}, {"TF_CONFIG", *ELASTIC}),
        ({"remote": HOSTS, "max_restarts": 1}, {"TF_CONFIG", *ELASTIC, "TFDIST_COPIES_DIR"}),
    ],
)
def test_nothing_of_an_outer_job_is_inherited(changes: dict[str, Any], more: set[str]) -> None:
    outer = COMMON | ELASTIC | {"TF_CONFIG", "TFDIST_COPIES_DIR", "TFDIST_MONITOR_DIR", "TFDIST_TASKS_FILE"}
    for spec in planned(LaunchConfig(**{"target": "train.py", "workers": 2, **changes})):
        assert spec.environment.keys() == COMMON | more
        assert spec.environ(dict.fromkeys(outer, "of somebody")) == spec.environment | spec.environ({})


def test_the_key_of_a_job_reaches_its_workers_and_is_shown_nowhere() -> None:
    key, more = job_key.drawn(), {"job_id": "f00", "directory": Path("/d"), "python": "/bin/py", "agent_pid": 7}
    two = [("127.0.0.1", 4001), ("127.0.0.1", 4002)]
    specs = plan(LaunchConfig(target="train.py", workers=2), addresses=two, key=key, **more)  # type: ignore[arg-type]
    for spec in specs:
        assert job_key.from_environment(spec.environ({})) == bytes.fromhex(key)
        assert key not in repr(spec) + described(spec)
    config = LaunchConfig(target="train.py", workers=1, parameter_servers=1)
    three = [*two, ("127.0.0.1", 4003)]
    for spec in plan(config, addresses=three, key=key, **more):  # type: ignore[arg-type]
        assert JOB_KEY.name not in spec.environ({JOB_KEY.name: "of an outer job"})


@pytest.mark.parametrize("value", ["short", "0" * 63, "g" * 64, "00" * 33])
def test_a_key_that_is_none_is_refused_and_not_repeated(value: str) -> None:
    with refused(ConfigError, name=JOB_KEY.name, received=None, mentions=["64 hexadecimal digits"]) as caught:
        job_key.from_environment({JOB_KEY.name: value})
    assert value not in str(caught.value)


def test_three_workers_agree_with_each_other_and_with_the_cluster() -> None:
    config = LaunchConfig(target="pkg.mod", is_module=True, workers=3, strategy="multi-worker", replicas_per_worker=2)
    specs = planned(config)
    assert [spec.index for spec in specs] == [0, 1, 2]
    assert [str(spec.task) for spec in specs] == ["worker 0", "worker 1", "worker 2"]
    assert len({spec.error_file for spec in specs}) == 3
    addresses = ("127.0.0.1:4001", "127.0.0.1:4002", "127.0.0.1:4003")
    for index, spec in enumerate(specs):
        assert spec.argv[-2:] == ("--module", "pkg.mod")
        assert spec.environment.keys() == COMMON | {"TF_CONFIG", "TFDIST_STRATEGY", "TFDIST_REPLICAS_PER_WORKER"}
        assert spec.environment["TFDIST_REPLICAS_PER_WORKER"] == "2"
        assert spec.environment["TFDIST_ERROR_FILE"] == str(spec.error_file)
        assert json.loads(spec.environment["TF_CONFIG"]) == {
            "cluster": {"worker": list(addresses)},
            "task": {"type": "worker", "index": index},
        }
        cluster = from_environment(spec.environment)
        assert (cluster.source, cluster.addresses, cluster.job_id) == ("tfdist run", addresses, "f00")
        assert (cluster.worker_index, cluster.local_index, cluster.local_workers) == (index, index, 3)
        plain = from_environment({"TF_CONFIG": spec.environment["TF_CONFIG"]})
        assert (plain.addresses, plain.worker_index) == (addresses, index)


def test_workers_on_several_hosts_know_their_place_on_each() -> None:
    addresses = [("n1", 4001), ("n2", 4001), ("n2", 4002)]
    more: dict[str, Any] = {"job_id": "f00", "directory": Path("/d"), "python": "py", "agent_pid": 7}
    specs = plan(LaunchConfig(target="train.py", workers=3), addresses=addresses, **more)
    assert [spec.address for spec in specs] == ["n1:4001", "n2:4001", "n2:4002"]
    clusters = [from_environment(spec.environment) for spec in specs]
    assert [(one.local_index, one.local_workers) for one in clusters] == [(0, 1), (0, 2), (1, 2)]
    assert clusters[2].addresses == ("n1:4001", "n2:4001", "n2:4002")
    assert specs[0].environ({"http_proxy": "http://p:1"})["no_grpc_proxy"] == "n1,n2"


@pytest.mark.parametrize(
    "change",
    [
        {"target": ""},
        {"target": Path("train.py")},
        {"is_module": 1},
        {"workers": 0},
        {"workers": True},
        {"workers": 1.0},
        {"workers": 1_000_000},
        {"strategy": ""},
        {"replicas_per_worker": 0},
        {"grace_seconds": -1},
        {"grace_seconds": float("nan")},
        {"grace_seconds": True},
        {"parameter_servers": -1},
        {"parameter_servers": True},
        {"max_restarts": -1},
        {"max_restarts": 1_000_000},
        {"workers": 2, "min_workers": 3},
        {"workers": 2, "max_workers": 1},
        {"workers": 2, "max_workers": 3, "parameter_servers": 1},
        {"workers": 2, "min_workers": 1, "parameter_servers": 1},
        {"standby": True},
        {"max_restarts": 1, "parameter_servers": 1, "standby": True},
        {"shares": "3,"},
        {"shares": "3,0"},
        {"workers": 2, "max_workers": 3, "shares": "3,1"},
        {"workers": 2, "parameter_servers": 1, "shares": "3,1"},
        {"workers": 2, "shares": "3"},
        {"workers": 2, "shares": "3,1,1"},
        {"workers": 4, "strategy": "multi-worker", "shares": "3,1"},
        {"strategy": "mirrored", "replicas_per_worker": 2, "shares": "3,1,1"},
        {"hang_seconds": 0},
        {"stall_seconds": -1},
        {"exit_seconds": 0},
        {"environment": [("A", "1")]},
        {"environment": {"A": 1}},
        {"environment": {1: "A"}},
        {"environment": {"": "1"}},
        {"environment": {"A=B": "1"}},
        {"environment": {"A": "1\0"}},
    ],
)
def test_requests_that_cannot_be(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        LaunchConfig(**{"target": "train.py", **change})  # type: ignore[arg-type]
    wrong = list(change)[-1].replace("target", "script")
    assert caught.value.name in (wrong, f"{wrong} (-n)", f"{wrong} (--{wrong.replace('_', '-')})")


@pytest.mark.parametrize(
    "possible",
    [
        {"workers": 2, "strategy": "multi-worker", "shares": "3,3,1,1"},  # two replicas each, if the hosts have them
        {"workers": 4, "strategy": "ring", "shares": "3,1"},  # two groups of the ring
        {"workers": 4, "shares": "3,1"},
        {"workers": 2, "strategy": "pipeline", "shares": "1"},
        {"strategy": "mirrored", "replicas_per_worker": 2, "shares": "3,1"},
        {"shares": "3,1"},
        {"workers": 3, "environment": {"TFDIST_MESH": "batch=2,model=3"}, "shares": "3,1"},
        {"workers": 2, "max_workers": 3, "shares": "measured"},
        {"workers": 7, "strategy": "multi-worker", "shares": "measured"},
    ],
)
def test_shares_that_some_job_has(possible: dict[str, Any]) -> None:
    assert LaunchConfig(target="train.py", **possible).shares == possible["shares"]


def test_every_worker_gets_the_shares_of_all() -> None:
    specs = planned(LaunchConfig(target="train.py", workers=2, shares="3,1"))
    assert [SHARES.read(spec.environment) for spec in specs] == [(3, 1), (3, 1)]


def test_requests_are_frozen() -> None:
    config = LaunchConfig(target="train.py")
    with pytest.raises(FrozenInstanceError):
        config.workers = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("inherited", "exceptions"),
    [
        ({}, None),
        ({"HTTP_PROXY": "http://p:1"}, None),  # gRPC reads lower case only
        ({"http_proxy": ""}, None),
        ({"https_proxy": "http://p:1"}, "127.0.0.1"),
        ({"grpc_proxy": "http://p:1", "no_proxy": "a.b", "no_grpc_proxy": "c.d"}, "c.d,127.0.0.1"),
    ],
)
def test_workers_reach_each_other_around_a_proxy(inherited: dict[str, str], exceptions: str | None) -> None:
    (spec,) = planned(LaunchConfig(target="train.py"))
    environ = spec.environ(inherited)
    assert environ.get("no_grpc_proxy") == exceptions
    assert {name: environ[name] for name in inherited if name != "no_grpc_proxy"} == {
        name: value for name, value in inherited.items() if name != "no_grpc_proxy"
    }
