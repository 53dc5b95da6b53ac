"""Ports, the name of the host, proxies and the cluster that the environment describes."""

import json
from pathlib import Path

import pytest

from tfdist.doctor import network_check
from tfdist.doctor.finding import Level
from tfdist.doctor.network_check import Hostname, Ports

TF_CONFIG = json.dumps(
    {"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 1}}
)


def test_ports() -> None:
    (finding,) = network_check.judge_ports(Ports(free=(1, 2), ephemeral=(32768, 60999), listening=5))
    assert finding.level is Level.OK
    assert "5 sockets listen; ephemeral range 32768-60999" in finding.seen
    (finding,) = network_check.judge_ports(Ports(free=(1, 2), ephemeral=(60000, 60100)))
    assert (finding.level, "ip_local_port_range" in finding.cure) == (Level.WARNING, True)
    (finding,) = network_check.judge_ports(Ports(error="no address"))
    assert (finding.level, finding.seen) == (Level.PROBLEM, "no address")
    (finding,) = network_check.judge_ports(Ports(free=(1,)))
    assert finding.level is Level.OK


def test_who_can_connect_to_tensorflows_servers_is_said() -> None:
    _, finding = network_check.judge_ports(Ports(free=(1,), ephemeral=(32768, 60999), addresses=tuple("abcdef")))
    assert (finding.check, finding.level) == ("ports", Level.NOTE)
    assert finding.seen.endswith(": a, b, c, d and 2 more")


def test_ports_of_this_machine(tmp_path: Path) -> None:
    limits = tmp_path / "range"
    limits.write_text("40000\t41000\n")
    seen = network_check.observe_ports(limits)
    assert seen.ephemeral == (40000, 41000)
    assert len(set(seen.free)) == len(seen.free) > 1
    assert network_check.observe_ports(tmp_path / "none").ephemeral is None
    assert "127.0.0.1" not in seen.addresses


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        (Hostname(name="node7", addresses=("10.0.0.7",)), Level.OK),
        (Hostname(name="node7", addresses=("127.0.1.1", "10.0.0.7")), Level.OK),
        (Hostname(name="node7", addresses=("127.0.1.1", "::1")), Level.NOTE),
        (Hostname(name="node7", addresses=("fe80::1%eth0",)), Level.OK),
        (Hostname(name="node7", error="Name or service not known"), Level.WARNING),
        (Hostname(name="node7"), Level.WARNING),
    ],
)
def test_hostname(seen: Hostname, level: Level) -> None:
    (finding,) = network_check.judge_hostname(seen)
    assert finding.level is level
    assert "node7" in finding.seen


def test_a_resolver_that_does_not_answer_in_time_is_left() -> None:
    seen = network_check.observe_hostname(timeout_seconds=0.001)
    assert "did not end within 0.001 s" in seen.error


@pytest.mark.parametrize(
    ("environ", "hosts", "level"),
    [
        ({}, ["127.0.0.1"], Level.OK),
        ({"HTTP_PROXY": "http://p:1", "all_proxy": "http://p:1"}, ["127.0.0.1"], Level.OK),
        ({"http_proxy": ""}, ["127.0.0.1"], Level.OK),
        ({"http_proxy": "http://p:1"}, ["127.0.0.1"], Level.PROBLEM),
        ({"https_proxy": "http://p:1"}, ["127.0.0.1"], Level.PROBLEM),
        ({"grpc_proxy": "http://p:1"}, ["127.0.0.1"], Level.PROBLEM),
        ({"http_proxy": "http://p:1", "no_proxy": "localhost"}, ["127.0.0.1"], Level.PROBLEM),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, ["127.0.0.1"], Level.PROBLEM),
        ({"http_proxy": "http://p:1", "NO_PROXY": "127.0.0.1"}, ["127.0.0.1"], Level.PROBLEM),
        ({"http_proxy": "http://p:1", "no_proxy": "localhost, 127.0.0.1"}, ["127.0.0.1"], Level.OK),
        ({"http_proxy": "http://p:1", "no_proxy": "127.0.0.0/8"}, ["127.0.0.1"], Level.OK),
        ({"http_proxy": "http://p:1", "no_proxy": ".cluster.local"}, ["w0.cluster.local"], Level.OK),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.1"}, ["10.0.0.1", "10.0.0.2"], Level.PROBLEM),
        ({"http_proxy": "http://p:1", "no_grpc_proxy": "x", "no_proxy": "127.0.0.1"}, ["127.0.0.1"], Level.PROBLEM),
        ({"http_proxy": "http://p:1", "no_grpc_proxy": "127.0.0.1"}, ["127.0.0.1"], Level.OK),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/99"}, ["10.0.0.1"], Level.PROBLEM),
    ],
)
def test_proxies(environ: dict[str, str], hosts: list[str], level: Level) -> None:
    (finding,) = network_check.judge_proxies(environ, hosts)
    assert finding.level is level


def test_the_cure_keeps_the_exceptions_that_are_there_and_cures() -> None:
    environ = {"http_proxy": "http://p:1", "no_proxy": "localhost,10.0.0.1"}
    hosts = ["10.0.0.1", "10.0.0.2"]
    (finding,) = network_check.judge_proxies(environ, hosts)
    assert finding.cure == "export no_proxy=localhost,10.0.0.1,10.0.0.2"
    name, value = finding.cure.removeprefix("export ").split("=")
    (finding,) = network_check.judge_proxies({**environ, name: value}, hosts)
    assert finding.level is Level.OK


def test_cluster() -> None:
    (finding,) = network_check.judge_cluster({})
    assert (finding.level, finding.seen) == (Level.OK, "one worker (from: alone)")
    (finding,) = network_check.judge_cluster({"TF_CONFIG": TF_CONFIG})
    assert finding.level is Level.OK
    assert finding.seen == "worker 1 of 2 (from: TF_CONFIG): 10.0.0.1:2222, 10.0.0.2:2222"
    (finding,) = network_check.judge_cluster({"TF_CONFIG": "{not json"})
    assert finding.level is Level.PROBLEM
    assert "TF_CONFIG" in finding.seen


def test_worker_hosts() -> None:
    assert network_check.worker_hosts({"TF_CONFIG": TF_CONFIG}) == ("10.0.0.1", "10.0.0.2")
    assert network_check.worker_hosts({}) == ("127.0.0.1",)
    assert network_check.worker_hosts({"TF_CONFIG": "{not json"}) == ("127.0.0.1",)
