"""Ports: distinct, free, and refused with a reason."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.cluster import ports
from tfdist.errors import ConfigError, ConfigTypeError

ROOT = Path(__file__).parents[2]


def test_ports_are_distinct_and_free() -> None:
    chosen = ports.free_ports(50)
    assert len(set(chosen)) == 50
    for port in chosen:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_held_ports_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        taken = held.getsockname()[1]
        monkeypatch.setattr(ports.random, "randint", lambda low, high: taken)
        assert taken not in ports.free_ports(3)


def test_what_another_process_was_given_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from tfdist.cluster import ports; print(*ports.free_ports(1), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        given = int(other.stdout.readline())
        monkeypatch.setattr(ports.random, "randint", lambda low, high: given)
        assert given not in ports.free_ports(1)
        other.communicate()
    assert ports.free_ports(1) == [given], "the process has ended"
    assert given not in ports.free_ports(1), "this one has been given it"


def test_a_process_does_not_claim_more_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_CLAIMS", len(ports._claims) + 2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ports.free_ports(4)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    several = ports.free_ports(len(ports._claims) + 3)
    assert not any(ports._claimed(port) for port in several), "all of one call stay claimed"


def test_ports_stay_below_the_ephemeral_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: 20_000)
    assert all(10_000 <= port < 20_000 for port in ports.free_ports(20))


@pytest.mark.parametrize(
    ("count", "host", "kind", "name", "received"),
    [
        (-1, "127.0.0.1", ConfigError, "count", -1),
        (True, "127.0.0.1", ConfigTypeError, "count", True),
        (1, "192.0.2.1", ConfigError, "host", "192.0.2.1"),
        (1, "", ConfigError, "host", ""),
        (1, "no such host", ConfigError, "host", "no such host"),
    ],
)
def test_impossible_requests(count: int, host: str, kind: type[ConfigError], name: str, received: object) -> None:
    with refused(kind, name=name, received=received):
        ports.free_ports(count, host)
