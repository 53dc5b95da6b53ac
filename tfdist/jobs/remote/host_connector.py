"""The connection of the launcher to each host: by a command that reaches it, or by its agent that joins."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.cluster.cluster_values import split_address
from tfdist.errors import DeadlineError, TfdistError
from tfdist.jobs.connecting.connection import ByProgram, ByTcp, Connection
from tfdist.jobs.connecting.tcp_joining import Rendezvous, Ticket, own_addresses
from tfdist.jobs.launchers.launcher import Launcher, StartedAgents
from tfdist.jobs.plan.host_plan import Host, Remote

_LAST_SECONDS = 2.0  # for connections made before the end of the starting program


@dataclass(eq=False, repr=False)
class HostConnector:
    launcher: Launcher
    remote: Remote
    key: str
    environ: Mapping[str, str]
    say: Callable[[str], None]
    name: str = ""

    def __post_init__(self) -> None:
        self._hosts = self.remote.hosts
        self._allocator = self.launcher.allocator(
            self.remote, self.environ, name=self.name, say=self.say, lose=self._lose
        )
        self._rendezvous: Rendezvous | None = None
        self._started: StartedAgents | None = None
        self._joined: dict[str, ByTcp] = {}  # by address

    def allocate(
        self, count: int, *, interrupted: Callable[[], bool]
    ) -> tuple[tuple[Host, ...], tuple[dict[str, str], ...]]:
        """Return hosts that the launcher has chosen for this many processes, and the variables of each process."""
        assert self._allocator is not None
        if self._rendezvous is not None:  # its hosts are no longer the job's
            self._rendezvous.close()
            self._rendezvous = None
        self._hosts, variables = self._allocator.allocate(count, interrupted=interrupted)
        return self._hosts, variables

    def begin(self, hosts: Sequence[Host]) -> None:
        """Let these hosts join, unless a command reaches them; earlier ones must be done."""
        if self.launcher.by_command:
            return
        if self._rendezvous is None:
            names = [host.name for host in self._hosts]
            self._rendezvous = Rendezvous(bytes.fromhex(self.key), names, self._addresses())
            if self.launcher.by_hand:
                at = ",".join(self._rendezvous.addresses)
                self.say(f"waiting for {', '.join(host.name for host in hosts)}: tfdist agent {at} --name HOST")
        if self._started is not None:
            self._started.close()
        key, addresses = bytes.fromhex(self.key), self._rendezvous.addresses
        tickets = [Ticket(addresses=addresses, name=host.name, key=key) for host in hosts]
        if self._allocator is not None:
            self._started = self._allocator.start(hosts, tickets)
        else:
            self._started = self.launcher.start(self.remote, hosts, tickets, self.environ, self._lose_all)

    def connection(
        self, host: Host, *, interrupted: Callable[[], bool], join_seconds: float | None = None
    ) -> Connection:
        if self.launcher.by_command:
            return ByProgram(host, self.launcher.command(self.remote, host, self.environ))
        rendezvous, started = self._rendezvous, self._started
        assert rendezvous is not None
        assert started is not None
        seconds = self.launcher.join_seconds if join_seconds is None else join_seconds
        joined = rendezvous.take(
            host.name, timeout_seconds=seconds, give_up=lambda: interrupted() or bool(started.ended())
        )
        if joined is None and not interrupted():
            joined = rendezvous.take(host.name, timeout_seconds=_LAST_SECONDS, give_up=interrupted)
        if joined is not None:
            connection = ByTcp(joined, started.said)
            self._joined[host.address] = connection
            return connection
        if interrupted():
            raise TfdistError(f"the wait for host {host.name} was interrupted.")
        if started.ended():
            raise TfdistError(f"not every host has joined: {started.ended()}")
        at = ", ".join(rendezvous.addresses)
        raise DeadlineError(
            f"host {host.name} has not joined within {seconds:g} s at {at}; it has to reach the "
            "launcher there (--rendezvous ADDRESS:PORT names another address)."
            + "".join(f"\n  {line}" for line in started.said().splitlines())
            + (f"\n{started.cure()}" if started.cure() else ""),
            name=host.name,
        )

    def close(self) -> None:
        if self._started is not None:
            self._started.close()
        if self._allocator is not None:
            self._allocator.close()
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _lose(self, address: str) -> None:
        if address in self._joined:
            self._joined[address].cut()

    def _lose_all(self) -> None:
        for connection in list(self._joined.values()):
            connection.cut()

    def _addresses(self) -> list[tuple[str, int]]:
        given = self.remote.rendezvous
        if given:
            return [split_address("--rendezvous", given) if ":" in given else (given, 0)]
        found = own_addresses([host.address for host in self._hosts])
        if not found:
            names = ", ".join(host.name for host in self._hosts)
            unknown = [host.address for host in self._hosts if not _is_known(host.address)]
            if unknown:
                raise TfdistError(
                    f"{', '.join(unknown)}: no address of that name is known here. Look at the names in --hosts, or "
                    f"add addresses: --hosts {unknown[0]}=ADDRESS"
                )
            raise TfdistError(
                f"no address of {socket.gethostname()} is known by which {names} reach it. Name one: "
                "--rendezvous ADDRESS:PORT"
            )
        return [(host, 0) for host in found]


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):  # the second: no name could be so, such as "a..b"
        return False
