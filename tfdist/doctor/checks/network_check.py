"""Ports and the name of this host: whether workers can listen, and whether other hosts can find this one.

Example:
    >>> judge_hostname(Hostname(name="node7", addresses=("10.0.0.7",)))[0].seen
    'node7 is 10.0.0.7'
"""

import ipaddress
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tfdist.cluster import ports
from tfdist.doctor import child
from tfdist.doctor.finding import Finding, note, ok, problem, warning
from tfdist.errors import TfdistError

_WANTED_PORTS = 8
_FEW_EPHEMERAL = 2000
_SHOWN = 4  # addresses
_RESOLVE = """
import json, socket, sys
found = socket.getaddrinfo(sys.argv[1], None, type=socket.SOCK_STREAM)
print(json.dumps(sorted({entry[4][0] for entry in found})))
"""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports on the loopback interface.

    Attributes:
        free: ports on which a worker could listen now.
        error: why there are none.
        ephemeral: first and last port of the range that outgoing connections are given; None where it is unknown.
        listening: how many sockets listen on this machine.
        addresses: of this machine, by which others may reach it.
    """

    free: tuple[int, ...] = ()
    error: str = ""
    ephemeral: tuple[int, int] | None = None
    listening: int = 0
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hostname:
    """The name of this host and the addresses it stands for; or why it stands for none."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""


def observe_ports(range_file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> Ports:
    """Look for free ports on loopback and read the ephemeral range."""
    first_last = tuple(int(word) for word in range_file.read_text().split()) if range_file.is_file() else ()
    ephemeral = (first_last[0], first_last[1]) if len(first_last) == 2 else None
    sockets = psutil.net_connections(kind="tcp")
    listening = sum(connection.status == psutil.CONN_LISTEN for connection in sockets)
    seen = Ports(ephemeral=ephemeral, listening=listening, addresses=_addresses())
    try:
        return replace(seen, free=tuple(ports.free_ports(_WANTED_PORTS)))
    except (TfdistError, OSError) as error:
        return replace(seen, error=str(error))


def _addresses() -> tuple[str, ...]:
    found = [one for interface in psutil.net_if_addrs().values() for one in interface]
    texts = sorted({one.address.partition("%")[0] for one in found if one.family in (socket.AF_INET, socket.AF_INET6)})
    known = [ipaddress.ip_address(text) for text in texts]
    return tuple(str(one) for one in known if not (one.is_loopback or one.is_link_local))


def judge_ports(seen: Ports) -> list[Finding]:
    """Say whether local workers can listen."""
    if seen.error:
        why = "each worker listens on one port of 127.0.0.1"
        return [problem("ports", seen.error, why, "ss -ltnp   # what listens; ip link set lo up   # if lo is down")]
    text = f"{len(seen.free)} of {len(seen.free)} tried on 127.0.0.1 are free; {seen.listening} sockets listen"
    if seen.ephemeral is None:
        return [ok("ports", text), *_open(seen)]
    first, last = seen.ephemeral
    text += f"; ephemeral range {first}-{last}"
    if last - first + 1 < _FEW_EPHEMERAL:
        why = "connections between workers take their local ports from the ephemeral range, which is small"
        return [warning("ports", text, why, 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"'), *_open(seen)]
    return [ok("ports", text), *_open(seen)]


def _open(seen: Ports) -> list[Finding]:
    """Say who may reach TensorFlow's servers, which no option binds to one address."""
    if not seen.addresses:
        return []
    text = f"TensorFlow's servers listen on all interfaces, also those of a job on this machine: {_few(seen.addresses)}"
    why = "they ask nobody for a proof: multi-worker, sharded-data-parallel and parameter-server jobs have such servers"
    return [
        note("ports", text, why, "docs/run.md#who-can-connect   # let a firewall admit the hosts of your jobs alone")
    ]


def _few(addresses: Sequence[str]) -> str:
    more = f" and {len(addresses) - _SHOWN} more" if len(addresses) > _SHOWN else ""
    return ", ".join(addresses[:_SHOWN]) + more


def observe_hostname(*, timeout_seconds: float) -> Hostname:
    """Resolve the name of this host in a child process, with a deadline (a resolver may wait for minutes)."""
    name = socket.gethostname()
    outcome = child.run([sys.executable, "-I", "-c", _RESOLVE, name], timeout_seconds=timeout_seconds)
    if outcome.code == 0:
        return Hostname(name=name, addresses=tuple(json.loads(outcome.output)))
    return Hostname(name=name, error=outcome.errors.splitlines()[-1] if outcome.errors else "no answer")


def judge_hostname(seen: Hostname) -> list[Finding]:
    """Say whether the name of this host can stand in the address list of a cluster of several hosts."""
    if seen.error or not seen.addresses:
        why = "a cluster whose addresses use this name cannot connect; workers on this host alone are not affected"
        cure = f'echo "$(hostname -I | cut -d" " -f1) {seen.name}" >> /etc/hosts'
        return [warning("hostname", f"{seen.name} does not resolve: {seen.error or 'no address'}", why, cure)]
    text = f"{seen.name} is {', '.join(seen.addresses)}"
    if all(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in seen.addresses):
        why = "other hosts cannot use this name: on this host it means the loopback interface"
        return [note("hostname", text, why, "hostname -I   # use one of these addresses in TF_CONFIG")]
    return [ok("hostname", text)]
