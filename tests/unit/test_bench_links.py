"""Slow networks for benchmarks: the commands that make them, what is left behind by one that was killed, refusals."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfdist.bench.workers import delays
from tfdist.bench.workers import slow_network as links
from tfdist.bench.workers.slow_network import EmulatedLink, Network
from tfdist.errors import ConfigError, MissingDependencyError, TfdistError

NETWORK = Network(name="tfdist-link-7-100", subnet="10.9.8", workers=3)


def made(link: EmulatedLink) -> list[str]:
    return [" ".join(command) for command in links.commands(NETWORK, link, outside="tfdist7")]


def test_every_worker_has_a_namespace_an_address_and_limits_in_both_directions() -> None:
    commands = made(EmulatedLink(rate="100mbit"))
    for worker, host in enumerate(NETWORK.hosts):
        assert f"ip netns add tfdist-link-7-100-{worker}" in commands
        assert f"ip -n tfdist-link-7-100-{worker} addr add {host}/24 dev eth0" in commands
        limits = [command for command in commands if "tbf rate 100mbit" in command]
        assert sum(f"-n tfdist-link-7-100-{worker} " in command for command in limits) == 1
        assert sum(f"dev port{worker} " in command for command in limits) == 1
    assert "ip addr add 10.9.8.254/24 dev tfdist7" in commands
    assert not [command for command in commands if "netem" in command]


def test_what_a_worker_sends_waits_before_it_comes_to_the_bridge() -> None:
    commands = made(EmulatedLink(rate="10gbit", delay_ms=0.5))
    hub = f"ip -n {NETWORK.hub} link"
    for worker in range(NETWORK.workers):
        pair = ("type", "veth", "peer", "name")
        assert " ".join((hub, "add", f"wire{worker}", *pair, f"late{worker}")) in commands
        assert f"{hub} set late{worker} master bridge0 up" in commands
        assert f"{hub} set port{worker} master bridge0 up" not in commands
        assert f"{hub} set port{worker} master bridge0 up" in made(EmulatedLink(rate="10gbit"))
    assert sum(command.endswith("latency 51ms") for command in commands) == 2 * NETWORK.workers


def test_frames_are_held_one_way_and_come_in_order() -> None:
    (outer, port), (wire, far), (end, ends) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3))
    relay = threading.Thread(target=delays.relay, args=(0.05, [(port, wire)], end))
    relay.start()
    try:
        for one in (far, outer):
            one.settimeout(30)
        frames = [bytes([number]) * 1400 for number in range(8)]  # a queue of this kind may hold ten
        began = time.monotonic()
        for frame in frames:
            outer.send(frame)
        assert [far.recv(2000) for _ in frames] == frames
        assert time.monotonic() - began >= 0.05
        far.send(b"answer")
        assert outer.recv(2000) == b"answer"
    finally:
        ends.send(b".")
        relay.join(30)
        for one in (outer, port, wire, far, end, ends):
            one.close()
    assert not relay.is_alive()


def test_devices_that_are_not_there_are_an_error_and_nothing_is_left() -> None:
    late = delays.holding([], 0.1, [("no-such", "device")])
    with pytest.raises(TfdistError, match="packets cannot be delayed"), late:
        pass


@pytest.mark.parametrize(
    "link", [{"rate": "1mbit"}, {"rate": "1gbit", "delay_ms": -1}, {"rate": "1gbit", "delay_ms": "1"}]
)
def test_a_link_that_makes_no_sense_is_refused(link: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        EmulatedLink(**link)  # type: ignore[arg-type]


def test_who_is_not_root_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"user 1000.*sudo"), links.network(EmulatedLink(rate="1gbit"), 2):
        pass


def test_without_the_programs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "tc" else f"/sbin/{program}")
    with (
        pytest.raises(MissingDependencyError, match=r"tc.*is not on PATH.*iproute2"),
        links.network(EmulatedLink(rate="1gbit"), 2),
    ):
        pass


class Kernel:
    """Stands for `ip` and `tc`: keeps the namespaces, and fails at one command."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.namespaces = {"tfdist-link-1-1-hub", "others"}

    def run(self, command: Sequence[str]) -> str:
        text = " ".join(command)
        if self.fails in text:
            raise ConfigError(f"{text} failed")
        if command[:3] == ["ip", "netns", "add"]:
            self.namespaces.add(command[3])
        if command[:3] == ["ip", "netns", "del"]:
            self.namespaces.remove(command[3])
        return "".join(f"{name} (id: 1)\n" for name in sorted(self.namespaces))


@pytest.mark.parametrize("fails", ["bridge", "port1", "tbf", "nothing"])
def test_nothing_is_left_behind_wherever_it_ends(fails: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel = Kernel(fails)
    (tmp_path / "tfdist-link-1-1-hub").mkdir()
    monkeypatch.setattr(links, "_FILES", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(links, "_run", kernel.run)
    seen: list[int] = []

    def measure() -> None:
        with links.network(EmulatedLink(rate="1gbit"), 2) as network:
            seen.append(len(kernel.namespaces & set(network.namespaces())))
            assert network.hosts[1] in (tmp_path / network.namespace(1) / "hosts").read_text()
            raise KeyboardInterrupt

    with pytest.raises((TfdistError, KeyboardInterrupt)):
        measure()
    assert seen == ([3] if fails == "nothing" else [])
    assert not list(tmp_path.iterdir())
    assert kernel.namespaces == {"others"}  # what one that was killed had left is gone as well
