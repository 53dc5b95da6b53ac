"""The hosts of a job, as `--hosts a:2,b:2` names them, and which process runs where: pure functions.

Processes fill the hosts in the order in which these are named, so the ranks of a host are contiguous: what adds up in
each host first, and between hosts then, relies on it.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from tfdist.errors import ConfigError
from tfdist.jobs.plan.resource_request import Demand
from tfdist.validation import integer, parse_integer, shown, text

MAX_SLOTS = 1024
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.\-]*[A-Za-z0-9_])?\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")
_FORM = "[USER@]HOST[=ADDRESS][:SLOTS], such as a:2 or me@gpu1=10.0.0.5:4"


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine, and how many processes it takes.

    Attributes:
        name: by which the launcher reaches it, with a user if one is named.
        address: by which the processes of the job reach it.
        slots: how many processes run there at most.
        group: which component of a heterogeneous job of Slurm it is of; None where there are none.

    Example:
        >>> Host(name="me@a", address="a", slots=2).slots
        2
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
    """Return the hosts of a text.

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
    """Return the host of each of so many processes.

    Where hosts are of two components, a chief and parameter servers are in the first, and workers in the second.

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


@dataclass(frozen=True, kw_only=True)
class Remote:
    """Where else than in processes of this host a job runs.

    Attributes:
        hosts: the machines, in the order in which they are filled; none if the launcher chooses them.
        launcher: what starts an agent on each of them: a name in `launcher_table.LAUNCHERS`.
        shell: the command that runs another command on a host: `ssh`, or with options of the user's.
        python: the interpreter there; by default the same path as here.
        passed: names of variables that the processes get from here, besides those that frameworks read.
        rendezvous: where hosts join, as "host:port"; empty: the launcher chooses.
        key: with which hosts join, in hexadecimal digits; empty: one is drawn. It is never shown.
        demand: what is requested from a launcher that chooses the hosts; None for any other.
        call: for such a launcher, the paths here of a file that is sent to each host, and of one that comes back from
            the host that has it at the end; None for a script.

    Example:
        >>> Remote(hosts=parse_hosts("a:2,b")).slots
        3
    """

    hosts: tuple[Host, ...]
    launcher: str = "ssh"
    shell: tuple[str, ...] = ("ssh",)
    python: str | None = None
    passed: tuple[str, ...] = ()
    rendezvous: str = ""
    key: str = field(default="", repr=False)
    demand: Demand | None = None
    call: tuple[str, str] | None = None

    @property
    def slots(self) -> int:
        """How many processes all hosts take."""
        return sum(host.slots for host in self.hosts)


def parse_shell(command: str, *, name: str = "--ssh-command") -> tuple[str, ...]:
    """Return the words of the command that runs another on a host.

    Example:
        >>> parse_shell("ssh -F 'my config'")
        ('ssh', '-F', 'my config')
    """
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
