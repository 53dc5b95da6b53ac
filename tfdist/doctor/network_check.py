"""Ports, the name of this host, proxies, and the cluster that the environment describes."""

import ipaddress
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tfdist import cluster
from tfdist.cluster import ports
from tfdist.doctor import child
from tfdist.doctor.finding import Finding, note, ok, problem, warning
from tfdist.errors import ConfigError, TfdistError
from tfdist.validation import counted

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
    """The ports of the loopback interface, and the addresses by which others reach this machine."""

    free: tuple[int, ...] = ()
    error: str = ""
    ephemeral: tuple[int, int] | None = None  # the range that outgoing connections take their ports from
    listening: int = 0  # sockets
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hostname:
    """The name of this host with its addresses, or the reason why it has none."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""


def observe_ports(range_file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> Ports:
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
    """Judge open ports: TensorFlow's servers listen on all interfaces, and no option binds them to one address."""
    if not seen.addresses:
        return []
    more = f" and {len(seen.addresses) - _SHOWN} more" if len(seen.addresses) > _SHOWN else ""
    shown = ", ".join(seen.addresses[:_SHOWN]) + more
    text = f"TensorFlow's servers listen on all interfaces, also those of a job on this machine: {shown}"
    why = "they accept any client: multi-worker, sharded-data-parallel and parameter-server jobs have such servers"
    return [note("ports", text, why, "tfdist docs run   # who can connect, and what a firewall should admit")]


def observe_hostname(*, timeout_seconds: float) -> Hostname:
    """Resolve the name in a child process, because a resolver may wait for minutes."""
    name = socket.gethostname()
    outcome = child.run([sys.executable, "-I", "-c", _RESOLVE, name], timeout_seconds=timeout_seconds)
    if outcome.code == 0:
        return Hostname(name=name, addresses=tuple(json.loads(outcome.output)))
    return Hostname(name=name, error=outcome.errors.splitlines()[-1] if outcome.errors else "no answer")


def judge_hostname(seen: Hostname) -> list[Finding]:
    if seen.error or not seen.addresses:
        why = "a cluster whose addresses use this name cannot connect; workers on this host alone are not affected"
        cure = f'echo "$(hostname -I | cut -d" " -f1) {seen.name}" >> /etc/hosts'
        return [warning("hostname", f"{seen.name} does not resolve: {seen.error or 'no address'}", why, cure)]
    text = f"{seen.name} is {', '.join(seen.addresses)}"
    if all(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in seen.addresses):
        why = "other hosts cannot use this name: on this host it means the loopback interface"
        return [note("hostname", text, why, "hostname -I   # use one of these addresses in TF_CONFIG")]
    return [ok("hostname", text)]


# What gRPC's core reads, tried with TensorFlow 2.21: these, in lower case only. Exceptions are ends of host names and
# networks (``10.0.0.0/8``); ``*`` excepts nothing. A proxy cannot serve gRPC between workers, even on 127.0.0.1, and a
# session between two servers then waits beyond its own deadline.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def judge_proxies(environ: Mapping[str, str], hosts: Sequence[str]) -> list[Finding]:
    proxy = next((name for name in _PROXIES if environ.get(name)), None)
    if proxy is None:
        return [ok("proxies", "gRPC uses none")]
    name = next((name for name in _EXCEPTIONS if environ.get(name)), "no_proxy")
    exceptions = environ.get(name, "")
    entries = [entry.strip() for entry in exceptions.split(",") if entry.strip()]
    caught = [host for host in dict.fromkeys(hosts) if not any(_matches(host, entry) for entry in entries)]
    if not caught:
        return [ok("proxies", f"{proxy} is set, {name} excepts {', '.join(dict.fromkeys(hosts))}")]
    seen = f"{proxy}={environ[proxy]}, and {name}={exceptions!r} does not except {', '.join(caught)}"
    why = "gRPC between workers goes to the proxy, and training waits without an end"
    return [problem("proxies", seen, why, f"export {name}={','.join(filter(None, [exceptions, *caught]))}")]


def _matches(host: str, entry: str) -> bool:
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    return host.lower().endswith(entry.lower())


LOOPBACK = ("127.0.0.1",)


def judge_cluster(environ: Mapping[str, str]) -> list[Finding]:
    try:
        found = cluster.from_environment(environ)
    except ConfigError as error:
        return [problem("cluster", str(error), "a script started here ends with this error", "env | sort")]
    if found.num_workers == 1 and not found.parameter_servers:
        return [ok("cluster", f"one worker (from: {found.source})")]
    count = found.num_workers
    place = (
        f"worker {found.worker_index} of {count}" if found.is_worker else f"{found.task}, {counted(count, 'worker')}"
    )
    return [ok("cluster", f"{place} (from: {found.source}): {', '.join(found.addresses)}")]


def worker_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of the cluster that the environment describes; loopback if it describes none."""
    try:
        addresses = cluster.from_environment(environ).addresses
    except ConfigError:
        return LOOPBACK
    return tuple(address.rpartition(":")[0].strip("[]") for address in addresses) or LOOPBACK
