"""The joining of hosts to a job over TCP, in which both sides prove that they know the job's key.

It is used where no program passes on standard streams: under `mpirun` and services that start processes themselves, and
on hosts without ssh. The launcher has a `Rendezvous`; a host agent joins by its environment (RENDEZVOUS, HOST_NAME,
JOB_KEY), which other users cannot read.

Each side answers the other's random number with an HMAC. Every later message is signed with keys of this connection, so
a stranger can neither add nor repeat one. Nothing is encrypted: the workers' key is derived on both sides and never
sent.

Source: M. Bellare, R. Canetti, H. Krawczyk, "Keying Hash Functions for Message Authentication", 1996.
"""

import contextlib
import errno
import hmac
import os
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
_GREETING_SECONDS = 10.0  # for a new connection to prove itself
_MOST_STRANGERS = 64  # at once
_AGAIN_SECONDS = 0.2
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """The addresses of the launcher ("host:port", the first that answers counts), the host's name, and the key."""

    addresses: tuple[str, ...]
    name: str
    key: bytes = field(repr=False)
    wait_seconds: float = JOIN_SECONDS.default

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Ticket | None":
        addresses = RENDEZVOUS.read(environ)
        if not addresses:
            return None
        key = job_key.from_environment(environ)
        if key is None:
            raise ConfigError(
                f"{RENDEZVOUS.name} is set and {JOB_KEY.name} is not; set it to the key of the job.", name=JOB_KEY.name
            )
        found = tuple(addresses.split(","))
        for address in found:
            split_address(RENDEZVOUS.name, address)
        name = HOST_NAME.read(environ) or socket.gethostname()
        return cls(addresses=found, name=name, key=key, wait_seconds=JOIN_SECONDS.read(environ))

    def environment(self) -> dict[str, str]:
        return {RENDEZVOUS.name: ",".join(self.addresses), HOST_NAME.name: self.name, JOB_KEY.name: self.key.hex()}


def key_of_workers(key: bytes, job_id: str) -> str:
    """Return the key of the workers of a job, derived by launcher and hosts alike."""
    return job_key.derived(key, "workers", [job_id]).hex()


class Rendezvous:
    """The launcher's side, which listens, and keeps joined hosts until they are taken."""

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
                # Python adds the address to the system's words
                reason = os.strerror(error.errno or 0) if error.errno in errno.errorcode else str(error)
                raise ConfigError(
                    f"the launcher cannot listen at {host}:{port} ({reason}), where hosts are to "
                    "join. Name an address of this machine, with a port that is free: --rendezvous ADDRESS:PORT",
                    name="--rendezvous",
                    received=f"{host}:{port}",
                ) from error
        ports = [listener.getsockname()[1] for listener in self._listeners]
        self.addresses = tuple(f"{host}:{port}" for (host, _), port in zip(addresses, ports, strict=True))
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="rendezvous", daemon=True).start()

    def take(
        self, name: str, *, timeout_seconds: float, give_up: Callable[[], bool] = lambda: False
    ) -> "Joined | None":
        """Return the connection of a host once it has joined; None if it does not join in time."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while (found := self._waiting.pop(name, None)) is None:
                if time.monotonic() >= deadline or give_up():
                    return None
                self._changed.wait(_POLL_SECONDS)
            return found

    def close(self) -> None:
        """Stop listening, and close connections that were not taken."""
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
            try:
                threading.Thread(target=self._meet, args=(connection,), name="joining host", daemon=True).start()
            except RuntimeError:  # no thread can be started now; the host tries again
                self._strangers.release()
                connection.close()

    def _meet(self, connection: socket.socket) -> None:
        """Keep a connection whose other side has proved that it has the key."""
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
                while connection.recv(1 << 10):  # an early close would lose what was sent
                    pass
            return
        with self._changed:
            before = connection if self._closed.is_set() else None
            if before is None:
                old = self._waiting.get(joined.name)
                before = None if old is None else old.connection  # of two hosts of the same name the later one counts
                self._waiting[joined.name] = joined
            self._changed.notify_all()
        if before is not None:
            before.close()


@dataclass(frozen=True, kw_only=True)
class Joined:
    name: str
    connection: socket.socket
    wire: Wire


def _met(connection: socket.socket, key: bytes) -> Joined:
    until = _prepare(connection)
    theirs = _read(connection, len(_MAGIC) + _NONCE, until)
    if theirs[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is not a host agent")
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
            raise ValueError("the listener there has another key")
        name = ticket.name.encode()
        connection.sendall(_LENGTH.pack(len(name)) + name + _proof(ticket.key, b"host", *told, name))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, _wire(connection, ticket.key, told, name, first="host")


def _prepare(connection: socket.socket) -> float:
    """Set options; return the time by which the other side must have proved itself."""
    connection.settimeout(_GREETING_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return time.monotonic() + _GREETING_SECONDS


def _read(connection: socket.socket, count: int, until: float) -> bytes:
    data = b""
    while len(data) < count:
        left = until - time.monotonic()
        if left <= 0:  # one bound, however slowly the bytes arrive
            raise TimeoutError("it did not prove in time that it has the key")
        connection.settimeout(left)
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("it has closed the connection")
        data += more
    return data


def _proof(key: bytes, who: bytes, *told: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((who, *(len(one).to_bytes(2, "big") + one for one in told))), "sha256")


def _wire(connection: socket.socket, key: bytes, told: Sequence[bytes], name: bytes, *, first: str) -> Wire:
    """Return the messages of a connection, sent with the key of ``first``."""
    keys = {who: _proof(key, f"messages of the {who}".encode(), *told, name) for who in ("launcher", "host")}
    other = {"launcher": "host", "host": "launcher"}[first]
    return Wire(connection.fileno(), connection.fileno(), Seal(keys[first], keys[other]))


def own_addresses(hosts: Collection[str]) -> tuple[str, ...]:
    """Return the addresses of this machine that face these hosts, without sending; unknown hosts are left out."""
    found: dict[str, None] = {}
    for host in hosts:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            own = probe.getsockname()[0]
            found["127.0.0.1" if own.startswith("127.") else own] = None
    return tuple(found)
