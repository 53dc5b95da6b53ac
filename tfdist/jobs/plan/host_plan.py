"""The hosts of a job, resource requests, and the host of each process: pure functions.

Processes fill the hosts in order, so the ranks of a host are contiguous. Hierarchical sums, first within hosts and then
between them, rely on it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfdist.errors import ConfigError
from tfdist.validation import integer, number, parse_integer, shown, text

MAX_SLOTS = 1024
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.\-]*[A-Za-z0-9_])?\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")
_FORM = "[USER@]HOST[=ADDRESS][:SLOTS], such as a:2 or me@gpu1=10.0.0.5:4"
PACKINGS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")  # as Ray's placement groups have them


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with `slots` for processes.

    The launcher reaches it by `name` (which may have a user), the processes of the job by `address`. `group` is its
    component of a heterogeneous job of Slurm.
    """

    name: str
    address: str
    slots: int = 1
    group: int | None = None

    def __post_init__(self) -> None:
        user, at, machine = text("host", self.name).rpartition("@")
        if (at and not _USER.match(user)) or not _NAME.match(machine):
            raise ConfigError(f"host is {shown(self.name)}; it must be {_FORM}.", name="host", received=self.name)
        if not _NAME.match(text("address", self.address)):
            raise ConfigError(
                f"the address of host {self.name} is {shown(self.address)}; it must be a name or a number of IPv4.",
                name=f"the address of host {self.name}",
                received=self.address,
            )
        integer(f"slots of host {self.name}", self.slots, minimum=1, maximum=MAX_SLOTS)


def parse_hosts(text_of_all: str) -> tuple[Host, ...]:
    """Parse the hosts in a text.

    Example:
        >>> [(host.name, host.address, host.slots) for host in parse_hosts("a:2, me@b=10.0.0.5")]
        [('a', 'a', 2), ('me@b', '10.0.0.5', 1)]
    """
    hosts = tuple(_parsed(part.strip()) for part in text_of_all.split(","))
    for position, host in enumerate(hosts):
        for other in hosts[:position]:
            if host.name == other.name or host.address == other.address:
                raise ConfigError(
                    f"--hosts names {shown(host.name)} twice, at {host.address}; name each host once, with its number "
                    f"of processes: {host.name}:{min(host.slots + other.slots, MAX_SLOTS)}",
                    name="--hosts",
                    received=host.name,
                )
    return hosts


def _parsed(part: str) -> Host:
    found = re.match(
        r"(?:(?P<user>[^@=:]+)@)?(?P<host>[^@=:]+)(?:=(?P<address>[^@=:]+))?(?::(?P<slots>[^:@=]*))?\Z", part
    )
    if not found:
        raise ConfigError(f"--hosts has {shown(part)}; a host is {_FORM}.", name="--hosts", received=part)
    user, host, address, slots = found.group("user", "host", "address", "slots")
    return Host(
        name=host if user is None else f"{user}@{host}",
        address=address or host,
        slots=1 if slots is None else parse_integer(f"the slots of {shown(part)} in --hosts", slots, minimum=1),
    )


def places(hosts: Sequence[Host], count: int, *, servers: int = 0) -> tuple[Host, ...]:
    """Return the host of each process.

    With two components, a chief and parameter servers run in the first, workers in the second.

    Example:
        >>> a, b = parse_hosts("a:2,b:2")
        >>> [host.name for host in places([a, b], 3)]
        ['a', 'a', 'b']
        >>> apart = [Host(name="c", address="c", slots=3, group=0), Host(name="g", address="g", slots=2, group=1)]
        >>> [host.name for host in places(apart, 5, servers=2)]
        ['c', 'g', 'g', 'c', 'c']
    """
    if servers and {host.group for host in hosts} == {0, 1}:
        first, second = ([host for host in hosts if host.group == group] for group in (0, 1))
        chief, *others = places(first, 1 + servers)
        return (chief, *places(second, count - 1 - servers), *others)
    slots = [host for host in hosts for _ in range(host.slots)]
    if count > len(slots):
        have = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ConfigError(
            f"{count} processes are asked for, and the hosts have places for {len(slots)} ({have}). Name more hosts or "
            "more places in --hosts, or ask for fewer with -n.",
            name="--hosts",
            received=count,
        )
    return tuple(slots[:count])


class NoRoomError(ConfigError):
    """Raised if the nodes have fewer resources than requested; they have room for `room` processes."""

    def __init__(self, message: str, room: int) -> None:
        super().__init__(message)
        self.room = room


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The resources of each process, whatever its role, and the cluster that provides them."""

    cpus: float = 1
    gpus: float = 0
    memory: int = 0  # bytes; 0 for unlimited
    packing: str = "PACK"
    address: str = ""  # empty: the cluster that Ray finds
    wait_seconds: float | None = None  # for room; None waits for other jobs, but not for resources that no node has

    def __post_init__(self) -> None:
        number("cpus (--cpus-per-worker)", self.cpus, minimum=0)
        number("gpus (--gpus-per-worker)", self.gpus, minimum=0)
        integer("memory (--memory-per-worker)", self.memory, minimum=0)
        if self.wait_seconds is not None:
            number("wait_seconds (--wait-seconds)", self.wait_seconds, minimum=0, maximum=30 * 86_400)
        if self.packing not in PACKINGS:
            raise ConfigError(f"packing is {shown(self.packing)}; it must be one of {', '.join(PACKINGS)}.")
        if not self.resources:
            raise ConfigError("cpus, gpus and memory are all 0; a process needs one of them. Give --cpus-per-worker 1.")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ConfigError(f"gpus (--gpus-per-worker) is {self.gpus:g}; above 1 it must be whole.")

    @property
    def resources(self) -> dict[str, float]:
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return {name: amount for name, amount in wanted.items() if amount}


@dataclass(frozen=True, kw_only=True)
class Remote:
    """The hosts of a job that is not local, and the way to reach them.

    Example:
        >>> Remote(hosts=parse_hosts("a:2,b")).slots
        3
    """

    hosts: tuple[Host, ...]  # the machines, in the order in which they are filled; none if the launcher chooses them
    launcher: str = "ssh"  # what starts an agent on each of them: a name in `launcher_table.LAUNCHERS`
    # the command that runs another command on a host: `ssh`, or with options of the user's
    shell: tuple[str, ...] = ("ssh",)
    python: str | None = None  # the interpreter there; by default the same path as here
    # names of variables that the processes get from here, besides those that frameworks read
    passed: tuple[str, ...] = ()
    rendezvous: str = ""  # where hosts join, as "host:port"; empty: the launcher chooses
    # the key with which hosts join, in hexadecimal digits; empty: one is drawn. It is never shown
    key: str = field(default="", repr=False)
    demand: Demand | None = None  # what is requested from a launcher that chooses the hosts; None for any other
    # for such a launcher, the paths here of a file that is sent to each host, and of one that comes back from the
    # host that has it at the end; None for a script
    call: tuple[str, str] | None = None

    @property
    def slots(self) -> int:
        return sum(host.slots for host in self.hosts)


def parse_shell(command: str, *, name: str = "--ssh-command") -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(
            f"{name} is {shown(command)} ({error}); close the quote.", name=name, received=command
        ) from error
    if not words:
        raise ConfigError(
            f"{name} is empty; name a program, such as 'ssh -p 2222', or leave it out.", name=name, received=command
        )
    return words


def room(bundle: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    return sum(min(int(node.get(name, 0) / amount + 1e-6) for name, amount in bundle.items()) for node in nodes)


def resources_in_words(resources: Mapping[str, float]) -> str:
    said = [f"{name} {resources[name]:g}" for name in ("CPU", "GPU") if name in resources]
    if "memory" in resources:
        said.append(f"memory {resources['memory'] / 2**30:.3g} GiB")
    return ", ".join(said) or "nothing"


def too_few(count: int, bundle: Mapping[str, float], nodes: Mapping[str, Mapping[str, float]]) -> str:
    """Return an error message that compares the requested resources with those of the cluster."""
    have = "; ".join(f"{address}: {resources_in_words(node)}" for address, node in nodes.items()) or "it has none"
    return (
        f"{count} processes of {resources_in_words(bundle)} each are asked for, and the nodes of the cluster have "
        f"room for {room(bundle, list(nodes.values()))} ({have}). Ask for less (-n, --cpus-per-worker, "
        "--gpus-per-worker, --memory-per-worker); if more nodes will come, say how long to wait: --wait-seconds 600"
    )
