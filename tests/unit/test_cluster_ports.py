"""Ports: distinct, free, and refused with a reason."""

import socket

import pytest

from tfdist.cluster import ports
from tfdist.errors import ConfigError


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


def test_ports_stay_below_the_ephemeral_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: 20_000)
    assert all(10_000 <= port < 20_000 for port in ports.free_ports(20))


@pytest.mark.parametrize(
    ("count", "host", "shown"),
    [(-1, "127.0.0.1", "count is -1"), (True, "127.0.0.1", "bool"), (1, "192.0.2.1", "192.0.2.1"), (1, "", "host"),
     (1, "no such host", "does not resolve")],
)  # fmt: skip
def test_impossible_requests(count: int, host: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        ports.free_ports(count, host)
