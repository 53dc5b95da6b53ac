"""Join a job over TCP: a host connects to the launcher, and both prove that they know the job's key.

For hosts that the launcher cannot reach by a program which passes on standard streams: those of `mpirun` and of an
service that starts processes by itself, and hosts without ssh. The launcher has a `Rendezvous`; on the host

    TFDIST_RENDEZVOUS=10.0.0.1:7000 TFDIST_HOST_NAME=a TFDIST_JOB_KEY=... python -m tfdist.jobs.remote.host_agent

joins. The key is in the environment, which other users cannot read, and in no command line. Each side answers the
other's random number with an HMAC; every message after that is signed with keys of this connection alone, so a stranger
on the way can neither say anything nor say it again. Nothing is encrypted: the key of the workers is not sent, but
derived on both sides.

Source: M. Bellare, R. Canetti, H. Krawczyk, "Keying Hash Functions for Message Authentication", 1996.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tfdist.cluster import job_key
from tfdist.cluster.cluster_values import split_address
from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.connecting.wire import Seal, Wire
from tfdist.variables import HOST_NAME, JOB_KEY, JOIN_SECONDS, RENDEZVOUS

AGENT_MODULE = "tfdist.jobs.remote.host_agent"
UNFINISHED = 75  # its exit code if the launcher was lost before it had said that the job has ended


_MAGIC = b"tfdist join 1\n\0\0"
_NONCE = 32
_PROOF = 32
_LENGTH = struct.Struct("<H")
_GREETING_SECONDS = 10.0  # for who connects to prove itself
_MOST_STRANGERS = 64  # at once
_AGAIN_SECONDS = 0.2
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """With what a host joins a job.

    Attributes:
        addresses: of the launcher, as "host:port"; the first that answers counts.
        name: of the host in the job.
        key: that the launcher has too.
        wait_seconds: how long to try, if the launcher is not there yet.
    """

    addresses: tuple[str, ...]
    name: str
    key: bytes = field(repr=False)
    wait_seconds: float = JOIN_SECONDS.default

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Ticket | None":
        """Return what the variables of this process say; None where they name no launcher.

        Example:
            >>> Ticket.from_environment({}) is None
            True
            >>> variables = {"TFDIST_RENDEZVOUS": "a:1", "TFDIST_HOST_NAME": "n", "TFDIST_JOB_KEY": "0" * 64}
            >>> Ticket.from_environment(variables).name
            'n'
        """
        addresses = RENDEZVOUS.read(environ)
        if not addresses:
            return None
        key = job_key.from_environment(environ)
        if key is None:
            raise ConfigError(
                f"{RENDEZVOUS.name} is set and {JOB_KEY.name} is not; set it to the key of the job.",
                name=JOB_KEY.name,
            )
        found = tuple(addresses.split(","))
        for address in found:
            split_address(RENDEZVOUS.name, address)
        name = HOST_NAME.read(environ) or socket.gethostname()
        return cls(addresses=found, name=name, key=key, wait_seconds=JOIN_SECONDS.read(environ))

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process has this ticket; one of them is a secret.

        Example:
            >>> sorted(Ticket(addresses=("a:1",), name="n", key=bytes(32)).environment())
            ['TFDIST_HOST_NAME', 'TFDIST_JOB_KEY', 'TFDIST_RENDEZVOUS']
        """
        return {
            RENDEZVOUS.name: ",".join(self.addresses),
            HOST_NAME.name: self.name,
            JOB_KEY.name: self.key.hex(),
        }


def key_of_workers(key: bytes, job_id: str) -> str:
    """Return the key by which the workers of a job know each other, which launcher and hosts derive alike.

    Example:
        >>> key_of_workers(bytes(32), "a") == key_of_workers(bytes(32), "b")
        False
    """
    return job_key.derived(key, "workers", [job_id]).hex()


class Rendezvous:
    """The launcher's side: listens, and keeps the hosts that have joined until they are asked for.

    Example:
        >>> key = job_key.derived(bytes(32), "example", [])
        >>> with contextlib.closing(Rendezvous(key, ["a"], [("127.0.0.1", 0)])) as rendezvous:
        ...     connection, wire = join(Ticket(addresses=rendezvous.addresses, name="a", key=key))
        ...     joined = rendezvous.take("a", timeout_seconds=60)
        ...     joined.wire.send({"is": "here"})
        ...     with connection, joined.connection:
        ...         wire.receive()
        {'is': 'here'}
    """

    def __init__(self, key: bytes, names: Collection[str], addresses: Sequence[tuple[str, int]]) -> None:
        self._key = key
        self._names = frozenset(names)
        self._waiting: dict[str, Joined] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        self._listeners: list[socket.socket] = []
        for host, port in addresses:
            try:
                self._listeners.append(socket.create_server((host, port), backlog=_MOST_STRANGERS))
            except OSError as error:
                self.close()
                raise ConfigError(
                    f"the launcher cannot listen at {host}:{port} ({error.strerror or error}), where hosts are to "
                    "join. Name an address of this machine, with a port that is free: --rendezvous ADDRESS:PORT",
                    name="--rendezvous",
                    received=f"{host}:{port}",
                ) from error
        ports = [listener.getsockname()[1] for listener in self._listeners]
        self.addresses = tuple(f"{host}:{port}" for (host, _), port in zip(addresses, ports, strict=True))
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def take(
        self, name: str, *, timeout_seconds: float, give_up: Callable[[], bool] = lambda: False
    ) -> "Joined | None":
        """Return the connection of a host, once it has joined; None if it has not in time."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while (found := self._waiting.pop(name, None)) is None:
                if time.monotonic() >= deadline or give_up():
                    return None
                self._changed.wait(_POLL_SECONDS)
            return found

    def close(self) -> None:
        """Listen no longer, and send away who waits."""
        with self._changed:
            self._closed.set()
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends the wait for the next one
            listener.close()
        for one in waiting:
            one.connection.close()

    def _listen(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                self._closed.wait(_AGAIN_SECONDS)  # unless it was closed, no descriptor is free
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._meet, args=(connection,), daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        """Let who has connected prove that it has the key, and keep its connection."""
        try:
            joined = _met(connection, self._key)
        except (OSError, ValueError):  # a stranger, or gone
            connection.close()
            return
        finally:
            self._strangers.release()
        if joined.name not in self._names:
            with connection, contextlib.suppress(OSError):
                expected = ", ".join(sorted(self._names))
                joined.wire.send({"refused": f"the job has no host {joined.name!r}; its hosts are {expected}."})
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(_GREETING_SECONDS)
                while connection.recv(1 << 10):  # closed before it is read, what was sent would be lost
                    pass
            return
        with self._changed:
            before = connection if self._closed.is_set() else None
            if before is None:
                old = self._waiting.get(joined.name)
                before = None if old is None else old.connection  # of two that say so the later is there
                self._waiting[joined.name] = joined
            self._changed.notify_all()
        if before is not None:
            before.close()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A host that has joined.

    Attributes:
        name: of it.
        connection: to it.
        wire: over that.
    """

    name: str
    connection: socket.socket
    wire: Wire


def _met(connection: socket.socket, key: bytes) -> Joined:
    """Return who has connected."""
    until = _prepare(connection)
    theirs = _read(connection, len(_MAGIC) + _NONCE, until)
    if theirs[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no host agent")
    ours = secrets.token_bytes(_NONCE)
    told = (theirs[len(_MAGIC) :], ours)
    connection.sendall(ours + _proof(key, b"launcher", *told))
    length = _read(connection, _LENGTH.size, until)
    name = _read(connection, _LENGTH.unpack(length)[0], until)
    if not hmac.compare_digest(_read(connection, _PROOF, until), _proof(key, b"host", *told, name)):
        raise ValueError("it has another key")
    connection.settimeout(None)
    return Joined(name=name.decode(), connection=connection, wire=_wire(connection, key, told, name, first="launcher"))


def join(ticket: Ticket) -> tuple[socket.socket, Wire]:
    """Join a job; return the connection to its launcher, and the messages over it."""
    deadline = time.monotonic() + ticket.wait_seconds
    while True:
        said: dict[str, str] = {}
        strange = False
        for address in ticket.addresses:
            try:
                return _joined(address, ticket)
            except ValueError as error:
                said[address], strange = str(error), True  # which time does not mend
            except OSError as error:
                said[address] = error.strerror or str(error) or type(error).__name__
        if strange or time.monotonic() >= deadline:
            why = "; ".join(f"{address}: {text}" for address, text in said.items())
            raise TfdistError(
                f"no launcher could be joined as host {ticket.name}, for up to {ticket.wait_seconds:g} s ({why}). It "
                "must run, be reached from here at that address, and have the same key.",
                name=ticket.name,
            )
        time.sleep(_AGAIN_SECONDS)


def _joined(address: str, ticket: Ticket) -> tuple[socket.socket, Wire]:
    host, port = split_address(RENDEZVOUS.name, address)
    connection = socket.create_connection((host, port), timeout=_GREETING_SECONDS)
    try:
        until = _prepare(connection)
        ours = secrets.token_bytes(_NONCE)
        connection.sendall(_MAGIC + ours)
        theirs = _read(connection, _NONCE, until)
        told = (ours, theirs)
        if not hmac.compare_digest(_read(connection, _PROOF, until), _proof(ticket.key, b"launcher", *told)):
            raise ValueError("who listens there has another key")
        name = ticket.name.encode()
        connection.sendall(_LENGTH.pack(len(name)) + name + _proof(ticket.key, b"host", *told, name))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, _wire(connection, ticket.key, told, name, first="host")


def _prepare(connection: socket.socket) -> float:
    """Return until when the other side has to have proved itself."""
    connection.settimeout(_GREETING_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return time.monotonic() + _GREETING_SECONDS


def _read(connection: socket.socket, count: int, until: float) -> bytes:
    data = b""
    while len(data) < count:
        left = until - time.monotonic()
        if left <= 0:  # who sends byte after byte takes no longer than who sends none
            raise TimeoutError("it has not proved itself in time")
        connection.settimeout(left)
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("it has closed the connection")
        data += more
    return data


def _proof(key: bytes, who: bytes, *told: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((who, *(len(one).to_bytes(2, "big") + one for one in told))), "sha256")


def _wire(connection: socket.socket, key: bytes, told: Sequence[bytes], name: bytes, *, first: str) -> Wire:
    """Return the messages of a connection, signed with keys of its own: that of ``first`` for what is sent."""
    keys = {who: _proof(key, f"messages of the {who}".encode(), *told, name) for who in ("launcher", "host")}
    other = {"launcher": "host", "host": "launcher"}[first]
    return Wire(connection.fileno(), connection.fileno(), Seal(keys[first], keys[other]))


def own_addresses(hosts: Collection[str]) -> tuple[str, ...]:
    """Return the addresses of this machine from which these hosts are reached, so that they reach it there.

    Nothing is sent. A host whose name is not known here is left out.

    Example:
        >>> own_addresses(["127.0.0.1", "127.0.0.2"])
        ('127.0.0.1',)
    """
    found: dict[str, None] = {}
    for host in hosts:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            own = probe.getsockname()[0]
            found["127.0.0.1" if own.startswith("127.") else own] = None
    return tuple(found)
