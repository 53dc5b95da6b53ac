"""Pods that are processes: for what stands for a cluster of Kubernetes, and for a real one whose nodes are made up.

A pod has process numbers, a host name and memory in /dev/shm of its own. All are in one network, where each has an
address. It needs root, iproute2 and util-linux.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.namespaces import ETC, ip

_OWN = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_FIRST = 'hostname "$0" && mount -t tmpfs -o size=1g none /dev/shm && exec "$@"'
_PROBE_SECONDS = 200


@dataclass(frozen=True)
class Network:
    """A network namespace, with addresses of pods, and names that mean them.

    Attributes:
        space: its name.
    """

    space: str

    def add(self, address: str) -> None:
        ip("-n", self.space, "address", "add", f"{address}/32", "dev", "lo")

    def remove(self, address: str) -> None:
        ip("-n", self.space, "address", "delete", f"{address}/32", "dev", "lo")

    def call(self, names: Mapping[str, str]) -> None:
        """Let names mean addresses, in place of those before, also for running pods: the file is the same."""
        lines = [f"{address} {name}" for name, address in names.items()]
        data = "\n".join(["127.0.0.1 localhost", *lines, ""]).encode()
        with open(ETC / self.space / "hosts", "r+b", buffering=0) as file:
            file.write(data)
            file.truncate()


@contextlib.contextmanager
def network(pods: Mapping[str, Sequence[str]] | None = None) -> Iterator[Network]:
    """Yield a network; afterwards it is gone.

    Args:
        pods: those that have an address from the beginning: its names by it.
    Raises:
        OSError: there is no `ip`, or it may not make namespaces.
    """
    found = Network(f"tfdist-{os.getpid()}-pods")
    with contextlib.ExitStack() as stack:
        ip("netns", "add", found.space)
        stack.callback(ip, "netns", "delete", found.space)
        (ETC / found.space).mkdir(parents=True)
        stack.callback(shutil.rmtree, ETC / found.space)
        (ETC / found.space / "hosts").touch()
        ip("-n", found.space, "link", "set", "lo", "up")
        for address in pods or {}:
            found.add(address)
        found.call({name: address for address, names in (pods or {}).items() for name in names})
        yield found


def why_not() -> str:
    """Return the reason why this machine can have no pods; empty if it can."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip (iproute2) or unshare (util-linux) is missing"
    try:
        with network() as found:
            words = ["ip", "netns", "exec", found.space, *_OWN, "sh", "-c", _FIRST, "probe", "true"]
            subprocess.run(words, check=True, capture_output=True, timeout=_PROBE_SECONDS)
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return f"namespaces need root and the capability to make them: {error}"


class Container:
    """The process of a pod.

    Args:
        space: its network.
        name: of its host.
        words: what it runs.
        variables: all that it has.
        folder: in which it runs.
        log: where it writes to.
    """

    def __init__(
        self, space: str, name: str, words: Sequence[str], *, variables: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", space, *_OWN, "sh", "-c", _FIRST, name, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**{name: os.environ[name] for name in ("PATH", "HOME")}, **variables},
                cwd=folder,
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """The exit code as a node tells it; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal as a node does: to the first process of the container; SIGKILL to all."""
        if number == signal.SIGKILL:
            self._process.kill()  # and the kernel kills the rest
            return
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children():
                child.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended.

        Raises:
            TimeoutExpired: it has not.
        """
        self._process.wait(seconds)
