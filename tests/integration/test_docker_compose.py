"""The commands of docker/compose.yaml, run as compose would: each worker in a network of its own, found by its name."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
CASE = Path(__file__).parent / "cases" / "compose_worker.py"
ETC = Path("/etc/netns")  # of which `ip netns exec` lays the files of a namespace over those in /etc


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


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
    """The service's command, with this Python, a small script in the recipe's place, and a folder for the volume."""
    program, script, *options = service["command"]
    assert program == "python"
    assert (ROOT / script).is_file()
    (place,) = (mount.partition(":")[2] for mount in service["volumes"])
    return [sys.executable, str(CASE), *(option.replace(place, str(volume), 1) for option in options)]


@pytest.mark.timeout(240)
def test_two_workers_with_addresses_of_their_own_train_one_model(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    with hosts(list(services)) as spaces, ExitStack() as stack:
        workers = {}
        for name, service in services.items():
            environ = {**os.environ, **service["environment"], "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
            inside = ["ip", "netns", "exec", spaces[name], *command(service, tmp_path / "backup")]
            process = subprocess.Popen(
                inside, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            workers[name] = process
        ended = {name: worker.communicate(timeout=200) for name, worker in workers.items()}
        sent = {name: sent_bytes(space) for name, space in spaces.items()}
    said = []
    for name, (output, errors) in ended.items():
        assert workers[name].returncode == 0, f"{name}: {errors.decode()[-3000:]}"
        said.append(json.loads(output.decode().splitlines()[-1]))
    assert [one.pop("address") for one in said] == [f"{name}:2222" for name in services]
    assert said[0] == said[1]  # replicas, losses and weights, to the bit
    assert (said[0]["strategy"], said[0]["replicas"]) == ("MultiWorkerMirroredStrategy", 2)
    assert said[0]["loss"][1] < said[0]["loss"][0]
    assert min(sent.values()) > 1000
