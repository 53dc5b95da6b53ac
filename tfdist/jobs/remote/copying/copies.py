"""Both sides of a host: it sends its states to one other host, and takes those of another."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tfdist.cluster import job_key
from tfdist.cluster.job_files import copies_folder, state_folder
from tfdist.jobs.connecting.tcp_joining import Ticket
from tfdist.jobs.remote.copying.state_receiver import Receiver
from tfdist.jobs.remote.copying.state_sender import Sender

_WAIT_SECONDS = 5.0
_Host = TypeVar("_Host")


def ring(hosts: Sequence[_Host]) -> list[tuple[_Host, _Host]]:
    """Return who sends to whom: each to the next; nobody where there is one host alone.

    Example:
        >>> ring("abc"), ring("a")
        ([('a', 'b'), ('b', 'c'), ('c', 'a')], [])
    """
    return [(host, hosts[(at + 1) % len(hosts)]) for at, host in enumerate(hosts)] if len(hosts) > 1 else []


class Copies:
    """What a host sends and takes."""

    def __init__(self, memory: Path, address: str, *, bytes_per_second: float, tell: Callable[[str], None]) -> None:
        self._memory = memory
        self._address = address
        self._rate = bytes_per_second
        self._tell = tell
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def take(self, sender: str, key: str) -> int:
        """Take copies from another host, and from no other one any more; return the port at which."""
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = Receiver(
            copies_folder(self._memory), address=self._address, sender=sender, key=_key(key), tell=self._tell
        )
        return self._receiver.port

    def send(self, to: str, name: str, key: str) -> None:
        """Send copies to another host, and to no other one any more."""
        if self._sender is not None:
            self._sender.close()
        ticket = Ticket(addresses=(to,), name=name, key=_key(key), wait_seconds=_WAIT_SECONDS)
        self._sender = Sender(
            state_folder(self._memory),
            copies_folder(self._memory),
            ticket,
            bytes_per_second=self._rate,
            tell=self._tell,
        )

    def look(self) -> None:
        """Look for states that are new here, or gone."""
        sender = self._sender
        if sender is not None:
            sender.look()

    def close(self) -> None:
        """Send and take no more."""
        for one in (self._sender, self._receiver):
            if one is not None:
                one.close()


def _key(key: str) -> bytes:
    return job_key.derived(bytes.fromhex(key), "copies", [])
