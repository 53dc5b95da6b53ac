"""A slow network on one machine: workers in network namespaces of their own, behind links of a chosen rate and delay.

The namespaces are named after the process that made them, which removes them when it ends; if it was killed, the next
one does. The kernel (`tc`) limits the rates; a process (`delays`) adds the delays.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tfdist import validation
from tfdist.bench.workers import delays
from tfdist.errors import ConfigError, MissingDependencyError, TfdistError

#: bits per second, by the name that `tc` has for them
RATES = {"100mbit": 100e6, "1gbit": 1e9, "10gbit": 10e9}
DEVICE = "eth0"

_PREFIX = "tfdist-link"
_FILES = Path("/etc/netns")  # `ip netns exec` shows a namespace's files there in the place of those in /etc
_SMALLEST_BURST = 64 << 10  # the largest packet that the kernel hands to a device in one go
_BURST_SECONDS = 0.001
_COMMAND_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class EmulatedLink:
    """The link of each worker, both ways: a rate from `RATES`, and the delay of a packet; a round trip takes two."""

    rate: str
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        validation.one_of("rate", self.rate, tuple(RATES))
        validation.number("delay_ms", self.delay_ms, minimum=0)

    def __str__(self) -> str:
        return f"{self.rate} with {self.delay_ms:g} ms of delay" if self.delay_ms else self.rate


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network of a benchmark's workers: the prefix of its namespaces, the first three numbers of its addresses."""

    name: str
    subnet: str
    workers: int

    @property
    def gateway(self) -> str:
        """The address at which workers reach the process that started them."""
        return f"{self.subnet}.254"

    @property
    def hosts(self) -> list[str]:
        return [f"{self.subnet}.{worker + 1}" for worker in range(self.workers)]

    def namespace(self, worker: int) -> str:
        return f"{self.name}-{worker}"

    @property
    def hub(self) -> str:
        """The namespace in which the links meet."""
        return f"{self.name}-hub"

    def namespaces(self) -> list[str]:
        return [*(self.namespace(worker) for worker in range(self.workers)), self.hub]

    def inside(self, worker: int) -> list[str]:
        return ["ip", "netns", "exec", self.namespace(worker)]


def commands(network: Network, link: EmulatedLink, *, outside: str) -> Iterator[list[str]]:
    """Yield the commands that make a network, in order.

    Example:
        >>> made = commands(Network(name="n", subnet="10.1.1", workers=2), EmulatedLink(rate="1gbit"), outside="d")
        >>> [" ".join(command) for command in made][-1]
        'tc -n n-hub qdisc add dev port1 root handle 1: tbf rate 1gbit burst 125000 latency 50ms'
    """
    hub = network.hub
    for name in network.namespaces():
        yield ["ip", "netns", "add", name]
        yield ["ip", "-n", name, "link", "set", "lo", "up"]
    yield ["ip", "-n", hub, "link", "add", "bridge0", "type", "bridge"]
    yield ["ip", "-n", hub, "link", "set", "bridge0", "up"]
    yield ["ip", "link", "add", outside, "type", "veth", "peer", "name", "outside", "netns", hub]
    yield ["ip", "-n", hub, "link", "set", "outside", "master", "bridge0", "up"]
    yield ["ip", "addr", "add", f"{network.gateway}/24", "dev", outside]
    yield ["ip", "link", "set", outside, "up"]
    for worker in range(network.workers):
        name, port = network.namespace(worker), f"port{worker}"
        yield ["ip", "-n", name, "link", "add", DEVICE, "type", "veth", "peer", "name", port, "netns", hub]
        if link.delay_ms:  # what comes in at the port waits on its way to the bridge
            wire, late = f"wire{worker}", f"late{worker}"
            yield ["ip", "-n", hub, "link", "set", port, "up"]
            yield ["ip", "-n", hub, "link", "add", wire, "type", "veth", "peer", "name", late]
            yield ["ip", "-n", hub, "link", "set", wire, "up"]
            yield ["ip", "-n", hub, "link", "set", late, "master", "bridge0", "up"]
        else:
            yield ["ip", "-n", hub, "link", "set", port, "master", "bridge0", "up"]
        yield ["ip", "-n", name, "addr", "add", f"{network.hosts[worker]}/24", "dev", DEVICE]
        yield ["ip", "-n", name, "link", "set", DEVICE, "up"]
        for namespace, device in ((name, DEVICE), (hub, port)):
            yield _limit(link, namespace, device)


def _limit(link: EmulatedLink, namespace: str, device: str) -> list[str]:
    burst = max(_SMALLEST_BURST, round(RATES[link.rate] / 8 * _BURST_SECONDS))
    # a sender that learns a round trip later that a packet was lost has sent that much more meanwhile
    queue = f"{50 + 2 * link.delay_ms:g}ms"
    add = ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:"]
    return [*add, "tbf", "rate", link.rate, "burst", str(burst), "latency", queue]


@contextlib.contextmanager
def network(link: EmulatedLink, workers: int) -> Iterator[Network]:
    """Make a network for this many workers, and remove it at the end of the block."""
    _require_rights()
    there = [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()]
    for name in stale(there, _begun):
        _delete([name])
    pid = os.getpid()
    made = Network(name=f"{_PREFIX}-{pid}-{_begun(pid)}", subnet=f"10.213.{pid % 254}", workers=workers)
    outside = f"tfdist{pid}"
    try:
        for command in commands(made, link, outside=outside):
            _run(command)
        for worker, host in enumerate(made.hosts):
            _name(made.namespace(worker), host)
        with _late(made, link):
            yield made
    finally:
        with contextlib.suppress(TfdistError):  # it was not made
            _run(["ip", "link", "del", outside])  # with its namespace it would go later, in the way of the next network
        _delete(made.namespaces())


def _late(made: Network, link: EmulatedLink) -> contextlib.AbstractContextManager[None]:
    if not link.delay_ms:
        return contextlib.nullcontext()
    pairs = [(f"port{worker}", f"wire{worker}") for worker in range(made.workers)]
    return delays.holding(["ip", "netns", "exec", made.hub], link.delay_ms / 1e3, pairs)


def stale(names: Iterable[str], begun: Callable[[int], str]) -> list[str]:
    found = ((name, re.match(rf"{_PREFIX}-(\d+)-(\d+)-", name)) for name in names)
    return [name for name, match in found if match and begun(int(match[1])) != match[2]]


def _begun(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _require_rights() -> None:
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise MissingDependencyError(
            f"{' and '.join(missing)}, which --link needs, is not on PATH. Install it: apt-get install iproute2"
        )
    if os.geteuid() != 0:
        raise ConfigError(
            f"--link creates network namespaces, which requires root; this is user {os.geteuid()}. "
            "Run the command as root, such as: sudo env PATH=$PATH tfdist bench all-reduce --link 1gbit"
        )


def _name(namespace: str, host: str) -> None:
    """Map this machine's name to a worker's address: Horovod listens at the address of its machine's name."""
    folder = _FILES / namespace
    folder.mkdir(parents=True, exist_ok=True)
    hosts = f"127.0.0.1 localhost\n{host} {socket.gethostname()}\n"
    (folder / "hosts").write_text(hosts, encoding="utf-8")


def _delete(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(TfdistError):  # it was not made, or another benchmark has just removed it
            _run(["ip", "netns", "del", name])
        shutil.rmtree(_FILES / name, ignore_errors=True)


def _run(command: Sequence[str]) -> str:
    # in its own session, because Ctrl-C is for this process, which then removes what it has made
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False, start_new_session=True
    )
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split())
    raise ConfigError(
        f"{' '.join(command)} failed: {said}. In a container, network namespaces need --cap-add=NET_ADMIN "
        "--cap-add=SYS_ADMIN."
    )


#: headers of a packet: Ethernet 14, IPv4 20, TCP 20 with its time stamps 12
HEADER_BYTES = 66

_COUNTERS = Path("/proc/self/net/dev")  # of the network namespace in which this process is
_BYTES, _PACKETS = 8, 9  # the columns after those of what was received


class Sent(NamedTuple):
    """The bytes sent, with headers, and the packets sent; a packet that the kernel segments later counts once."""

    bytes: int
    packets: int

    @property
    def payload(self) -> int:
        """The bytes without the headers of packets; nearly all packets are TCP's."""
        return self.bytes - HEADER_BYTES * self.packets


def sent() -> Sent | None:
    """Return the counters of `DEVICE`, which carries only one worker's traffic behind a link; None if there is none."""
    try:
        text = _COUNTERS.read_text(encoding="ascii")
    except OSError:
        return None
    return counted(text, DEVICE)


def since(before: Sent | None) -> Sent | None:
    """Return the traffic since the counters had these values; None if there are no counters."""
    now = None if before is None else sent()
    return None if before is None or now is None else Sent(now.bytes - before.bytes, now.packets - before.packets)


def counted(text: str, device: str) -> Sent | None:
    """Return the bytes and packets that a device has sent.

    Example:
        >>> counted("  eth0: 100 1 0 0 0 0 0 0 250 2 0 0 0 0 0 0", "eth0")
        Sent(bytes=250, packets=2)
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == device:
            columns = counters.split()
            return Sent(int(columns[_BYTES]), int(columns[_PACKETS]))
    return None
