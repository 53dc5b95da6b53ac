"""Machines made of namespaces, for trials that need several: each has its own network, processes, memory and name.

They are joined by a bridge in the namespace in which the launcher runs. Files are those of this machine, as on a
cluster with a shared file system, except /run and /dev/shm. This needs root and iproute2.
"""

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import namespaces
from tests.namespaces import ETC

LAUNCHER = "launcher"
SECONDS = 60.0
ip = functools.partial(namespaces.ip, seconds=SECONDS)


@dataclass(kw_only=True)
class Machines:
    """Machines that are joined.

    Attributes:
        names: of the machines.
        folder: for what they need.
        variables: that their programs have.
        services: the first process of each.
    """

    names: tuple[str, ...]
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    services: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def space(self, name: str) -> str:
        return f"tfdist-{os.getpid()}-{name}"

    def address(self, name: str) -> str:
        return f"10.78.0.{1 + (*self.names, LAUNCHER).index(name)}"

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs another in the network of a machine."""
        return ["ip", "netns", "exec", self.space(name), *command]

    def end(self, name: str) -> None:
        """End a machine: its first process, and so all of them."""
        os.killpg(self.services[name].pid, signal.SIGKILL)

    @contextlib.contextmanager
    def service(self, name: str, script: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a script of a shell as the first process of a machine; all of its processes end with it."""
        first = f"hostname {name}; mount -t tmpfs none /run; mount -t tmpfs none /dev/shm; {script}"
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - closed below
        process = subprocess.Popen(
            self.inside(
                name, ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", first]
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **self.variables},
            start_new_session=True,
        )
        self.services[name] = process
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS)
            log.close()

    def wait_for_port(self, name: str, port: int) -> None:
        """Wait until a machine listens there."""
        probe = f"import socket; socket.create_connection(('{self.address(name)}', {port}), 2)"
        deadline = time.monotonic() + SECONDS
        while subprocess.run(
            self.inside(LAUNCHER, ["python3", "-c", probe]), capture_output=True, check=False
        ).returncode:
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / f"{name}.log").read_text())
            time.sleep(0.1)

    def cut(self, name: str) -> None:
        """Pull a machine's cable."""
        ip("-n", self.space(LAUNCHER), "link", "set", f"to-{name}", "down")

    def join(self, name: str) -> None:
        """Plug it in again."""
        ip("-n", self.space(LAUNCHER), "link", "set", f"to-{name}", "up")


@contextlib.contextmanager
def machines(names: Sequence[str], folder: Path, *, users: Sequence[str] = ()) -> Iterator[Machines]:
    """Yield machines; afterwards their namespaces are gone.

    Args:
        names: of the machines.
        folder: for what they need.
        users: lines that /etc/passwd has in addition.
    Raises:
        OSError: there is no `ip`, or it may not make namespaces.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left then either
    found = Machines(names=tuple(names), folder=folder)
    everybody = (*names, LAUNCHER)
    lines = ["127.0.0.1 localhost", *(f"{found.address(name)} {name}" for name in everybody)]
    with contextlib.ExitStack() as stack:
        for name in everybody:
            space = found.space(name)
            ip("netns", "add", space)
            stack.callback(ip, "netns", "delete", space)
            (ETC / space).mkdir(parents=True)
            stack.callback(shutil.rmtree, ETC / space)
            (ETC / space / "hosts").write_text("\n".join(lines) + "\n")
            (ETC / space / "passwd").write_text("\n".join([Path("/etc/passwd").read_text().rstrip(), *users]) + "\n")
            ip("-n", space, "link", "set", "lo", "up")
        hub = found.space(LAUNCHER)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        for name in names:
            ends = ("link", "add", "eth0", "netns", found.space(name), "type", "veth", "peer", "name", f"to-{name}")
            ip(*ends, "netns", hub)
            ip("-n", hub, "link", "set", f"to-{name}", "master", "bridge", "up")
            ip("-n", found.space(name), "address", "add", f"{found.address(name)}/24", "dev", "eth0")
            ip("-n", found.space(name), "link", "set", "eth0", "up")
        ip("-n", hub, "address", "add", f"{found.address(LAUNCHER)}/24", "dev", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        yield found


def quoted(*words: object) -> str:
    """Return words as a shell reads them.

    Example:
        >>> quoted("a b", 1)
        "'a b' 1"
    """
    return shlex.join(map(str, words))
