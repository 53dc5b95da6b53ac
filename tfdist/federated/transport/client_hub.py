"""The server's side: it listens, admits known clients, and passes their messages to one reader in order of arrival.

A connection that breaks a rule is closed; other connections are not affected. If a client connects again, its new
connection replaces the old one. Messages wait in a bounded queue; while it is full, nothing more is read.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdist.errors import ConfigError, TfdistError
from tfdist.federated.transport import array_frames
from tfdist.federated.transport.authenticated_streams import BUFFER_BYTES, PROOF_SECONDS, Stream, admit, server_context
from tfdist.federated.transport.federation_keys import Federation, ServerKey
from tfdist.federated.transport.loop_thread import LoopThread

SILENCE_SECONDS = 60.0  # after which the other side counts as lost
BEATS = 6  # in that time
_MOST_STRANGERS = 64  # connections at once that have not proved themselves
_MOST_WAITING = 8  # messages that were not taken
_END_SECONDS = 10.0  # for last messages to be taken
BEAT: dict[str, Any] = {"kind": "beat"}


@dataclass(frozen=True)
class Came:
    """A client is connected."""

    client: str


@dataclass(frozen=True)
class Gone:
    """A client's connection has ended."""

    client: str
    reason: str


@dataclass(frozen=True)
class Said:
    """A message of a client."""

    client: str
    message: dict[str, Any]


Event = Came | Gone | Said


class ClientHub:
    """The connections of all clients.

    Args:
        key: the key of the server.
        federation: the clients that may connect.
        largest: the largest number of bytes of a message's arrays.
        refused: a function called for each connection that is refused or breaks a rule, with its address and the
            reason.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: ServerKey,
        federation: Federation,
        *,
        largest: int,
        refused: Callable[[str, str], None] = lambda _address, _reason: None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        if key.fingerprint != federation.fingerprint:
            raise ConfigError(
                "the certificate in the list is not that of the server's key; clients would refuse this server. Use "
                "the list that was made with this key.",
                name="--keys",
            )
        self._key, self._federation, self._largest = key, federation, largest
        self._refused, self._silence_seconds = refused, silence_seconds
        self._streams: dict[str, Stream] = {}
        self._strangers = 0
        self._context = server_context(key)
        self._loop = LoopThread("tfdist-federated-server")
        try:
            self.port = self._loop.call(self._listen(host, port))
        except OSError as error:
            self._loop.close()
            raise ConfigError(
                f"the server cannot listen at {host}:{port} ({error.strerror or error}). Name an address of this "
                "machine, with a port that is free: --listen HOST:PORT",
                name="--listen",
                received=f"{host}:{port}",
            ) from error

    def take(self, timeout_seconds: float | None = None) -> Event | None:
        """Return the next event; None if there is none in time."""
        return self._loop.call(self._take(timeout_seconds))

    def send(self, client: str, message: dict[str, Any]) -> None:
        """Send a message without waiting for its arrival; for a client that is gone, do nothing."""
        array_frames.pack(message)  # what cannot be sent is an error here, and not where nobody waits for it
        self._loop.call(self._post(client, message))

    def close(self) -> None:
        """Send what is still to be sent, for a limited time, and end all connections."""
        if self._loop.is_running:
            try:
                self._loop.call(self._end())
            finally:
                self._loop.close()

    async def _listen(self, host: str, port: int) -> int:
        self._events: asyncio.Queue[Event] = asyncio.Queue(_MOST_WAITING)
        self._order = asyncio.Lock()
        self._outboxes: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self._server = await asyncio.start_server(
            self._connected, host, port, limit=BUFFER_BYTES, ssl=self._context, ssl_handshake_timeout=PROOF_SECONDS
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def _take(self, timeout_seconds: float | None) -> Event | None:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._events.get()
        except TimeoutError:
            return None

    async def _post(self, client: str, message: dict[str, Any]) -> None:
        if client in self._outboxes:
            self._outboxes[client].put_nowait(message)

    async def _end(self) -> None:
        self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                for outbox in list(self._outboxes.values()):
                    await outbox.join()
                for stream in list(self._streams.values()):
                    await stream.finish()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = "{}:{}".format(*writer.get_extra_info("peername")[:2])
        stream = Stream(reader, writer, silence_seconds=self._silence_seconds)
        try:
            name = await self._admitted(stream)
        except (TfdistError, OSError, TimeoutError, ssl.SSLError) as error:
            await stream.finish()
            self._refused(address, reason_of(error))
            return
        except asyncio.CancelledError:
            stream.close()
            raise
        await self._served(name, stream, address)

    async def _admitted(self, stream: Stream) -> str:
        if self._strangers >= _MOST_STRANGERS:
            raise ConnectionRefusedError("too many connections have not proved themselves")
        self._strangers += 1
        try:
            return await admit(stream, self._key.fingerprint, self._federation)
        finally:
            self._strangers -= 1

    async def _served(self, name: str, stream: Stream, address: str) -> None:
        """Read until the connection ends. Another task sends, so that a client which reads slowly delays no other."""
        if name in self._streams:
            self._streams[name].close()
        self._streams[name] = stream
        outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outboxes[name] = outbox
        sender = asyncio.create_task(_send_all(stream, outbox, self._silence_seconds / BEATS))
        try:
            await self._put(Came(name))
            while True:
                message = await stream.receive(largest=self._largest)
                if not is_beat(message):
                    await self._put(Said(name, message))
        except (TfdistError, OSError, TimeoutError, ssl.SSLError) as error:
            reason = reason_of(error)
            if isinstance(error, TfdistError):
                self._refused(address, reason)
        finally:
            sender.cancel()
            stream.close()
        if self._streams.get(name) is stream:
            del self._streams[name], self._outboxes[name]
            await self._put(Gone(name, reason))

    async def _put(self, event: Event) -> None:
        """Put an event behind all that wait: a queue that was full lets another one in between."""
        async with self._order:
            await self._events.put(event)


async def _send_all(stream: Stream, outbox: "asyncio.Queue[dict[str, Any]]", beat_seconds: float) -> None:
    """Send what is in the outbox, and a heartbeat if there is nothing; a failure shows where messages are read."""
    while True:
        try:
            async with asyncio.timeout(beat_seconds):
                message = await outbox.get()
        except TimeoutError:
            message = None
        try:
            await stream.send(BEAT if message is None else message)
        except (OSError, TimeoutError, ssl.SSLError):
            stream.close()
            return
        finally:
            if message is not None:
                outbox.task_done()


def is_beat(message: dict[str, Any]) -> bool:
    """Return whether a message is a heartbeat; an array in it is none, and compares element by element."""
    kind = message.get("kind")
    return isinstance(kind, str) and len(message) == 1 and kind == BEAT["kind"]


def reason_of(error: BaseException) -> str:
    """Return the reason why a connection ended, in few words."""
    if isinstance(error, TimeoutError):
        return "it was silent for too long"
    return str(error) or type(error).__name__
