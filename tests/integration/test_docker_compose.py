"""The commands of docker/compose.yaml, run as compose would: each worker in a network of its own, found by its name."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import light
from tests.integration.agents import wait_until
from tests.namespaces import ETC, ip

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
EPOCHS = 4
DEADLINE_SECONDS = 800


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
    """Why no network namespaces can be made here; empty when they can."""
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
    """The service's command with this Python, a folder for the volume, and fewer epochs."""
    program, script, *options = service["command"]
    assert program == "python"
    (place,) = (mount.partition(":")[2] for mount in service["volumes"])
    options = [option.replace(place, str(volume), 1) for option in options]
    return [sys.executable, str(ROOT / script), *options, "--epochs", str(EPOCHS)]


class Up:
    """All services, each in its network; what they print goes to files."""

    def __init__(self, services: dict[str, Any], spaces: dict[str, str], folder: Path, stack: ExitStack) -> None:
        self.logs = {name: folder / f"{name}.log" for name in services}
        self.processes = {}
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
        for name, service in services.items():
            environ = {**os.environ, **threads, **service["environment"], "CUDA_VISIBLE_DEVICES": ""}
            environ |= {"PYTHONPATH": f"{light.STARTING}:{ROOT}", "PYTHONUNBUFFERED": "1"}
            inside = ["ip", "netns", "exec", spaces[name], *command(service, folder / "backup")]
            with self.logs[name].open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    inside, env=environ, cwd=folder, stdout=log, stderr=subprocess.STDOUT
                )
            stack.callback(self.processes[name].wait)
            stack.callback(self.processes[name].kill)

    def said(self, name: str) -> str:
        return self.logs[name].read_text(errors="replace")

    def ended(self, code: int) -> None:
        for name, process in self.processes.items():
            assert process.wait(timeout=DEADLINE_SECONDS) == code, f"{name}: {self.said(name)[-3000:]}"


def test_two_workers_with_addresses_of_their_own_stop_and_go_on(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    chief, *_ = services
    with hosts(list(services)) as spaces, ExitStack() as stack:
        up = Up(services, spaces, tmp_path, stack)
        wait_until(lambda: f"Epoch 2/{EPOCHS}" in up.said(chief), "it does not train", seconds=DEADLINE_SECONDS)
        for process in up.processes.values():  # `docker compose stop`
            process.send_signal(signal.SIGTERM)
        up.ended(128 + signal.SIGTERM)
        assert "test accuracy" not in up.said(chief)
        again = Up(services, spaces, tmp_path, stack)
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
