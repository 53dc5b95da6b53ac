"""The commands of docker/compose.yaml, run as compose would: each worker in a network of its own, found by its name.

The workers are forks that have TensorFlow already, and enter their networks as `ip netns exec` does.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.agents import wait_until
from tests.integration.forks import Forks
from tests.namespaces import ETC, ip

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
EPOCHS = 4
DEADLINE_SECONDS = 800
# python inside.py NAMESPACE SCRIPT ...
INSIDE = """
import ctypes, os, runpy, sys

space, *sys.argv = sys.argv[1:]
system = ctypes.CDLL(None, use_errno=True)
NEW_NETWORK, NEW_MOUNTS, BIND, SLAVE_ALL = 0x40000000, 0x20000, 0x1000, 0x84000

def done(code):
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

with open(f"/run/netns/{space}") as network:
    done(system.setns(network.fileno(), NEW_NETWORK))
done(system.unshare(NEW_MOUNTS))
done(system.mount(b"", b"/", b"none", SLAVE_ALL, None))
done(system.mount(f"/etc/netns/{space}/hosts".encode(), b"/etc/hosts", b"none", BIND, None))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextmanager
def hosts(names: list[str]) -> Iterator[dict[str, str]]:
    """Two network namespaces that are joined by a cable; yields each one's name by that of its host."""
    spaces = {name: f"tfdist-{os.getpid()}-{name}" for name in names}
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    with ExitStack() as stack:
        for space in spaces.values():
            ip("netns", "add", space)
            stack.callback(ip, "netns", "delete", space)
            (ETC / space).mkdir(parents=True)
            stack.callback(shutil.rmtree, ETC / space)
            lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
            (ETC / space / "hosts").write_text("\n".join(lines) + "\n")
        one, other = spaces.values()
        ip("link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", other)
        for name, space in spaces.items():
            ip("-n", space, "address", "add", f"{addresses[name]}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", space, "link", "set", link, "up")
        yield spaces


def why_not() -> str:
    """Return the reason why no network namespaces can be made here; empty if they can."""
    if shutil.which("ip") is None:
        return "the program ip (iproute2) is missing"
    try:
        with hosts(["probe-0", "probe-1"]):
            return ""
    except OSError as error:
        return f"network namespaces need root and the capability to make them: {error}"


def sent_bytes(space: str) -> int:
    done = subprocess.run(["ip", "-n", space, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True)
    return json.loads(done.stdout)[0]["stats64"]["tx"]["bytes"]


def command(service: dict[str, Any], volume: Path) -> list[str]:
    """The service's script and options, with a folder for the volume, and fewer epochs."""
    program, script, *options = service["command"]
    assert program == "python"
    (place,) = (mount.partition(":")[2] for mount in service["volumes"])
    options = [option.replace(place, str(volume), 1) for option in options]
    return [str(ROOT / script), *options, "--epochs", str(EPOCHS)]


class Up:
    """All services, each in its network."""

    def __init__(
        self, drawing: Forks, services: dict[str, Any], spaces: dict[str, str], folder: Path, stack: ExitStack
    ) -> None:
        (folder / "inside.py").write_text(INSIDE)
        self.processes = {}
        for name, service in services.items():
            inside = [str(folder / "inside.py"), spaces[name], *command(service, folder / "backup")]
            started = drawing.start(*inside, cwd=folder, PYTHONUNBUFFERED="1", **service["environment"])
            self.processes[name] = stack.enter_context(started)

    def said(self, name: str) -> str:
        return self.processes[name].written

    def ended(self, code: int) -> None:
        for name, process in self.processes.items():
            assert process.wait(DEADLINE_SECONDS) == code, f"{name}: {self.said(name)[-3000:]}"


def test_two_workers_with_addresses_of_their_own_stop_and_go_on(drawing: Forks, tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    chief, *_ = services
    with hosts(list(services)) as spaces, ExitStack() as stack:
        up = Up(drawing, services, spaces, tmp_path, stack)
        wait_until(lambda: f"Epoch 2/{EPOCHS}" in up.said(chief), "it does not train", seconds=DEADLINE_SECONDS)
        for process in up.processes.values():  # `docker compose stop`
            process.send_signal(signal.SIGTERM)
        up.ended(128 + signal.SIGTERM)
        assert "test accuracy" not in up.said(chief)
        again = Up(drawing, services, spaces, tmp_path, stack)
        again.ended(0)
        sent = [sent_bytes(space) for space in spaces.values()]
    said = again.said(chief)
    assert f"Epoch 1/{EPOCHS}" not in said
    assert f"Epoch {EPOCHS}/{EPOCHS}" in said
    summary = json.loads((tmp_path / "backup" / "run" / "summary.json").read_text())
    assert (summary["workers"], summary["replicas"], summary["strategy"]) == (2, 2, "MultiWorkerMirroredStrategy")
    assert len(summary["history"]["loss"]) == EPOCHS
    assert summary["steps"] == EPOCHS * 20
    assert min(sent) > 1000
