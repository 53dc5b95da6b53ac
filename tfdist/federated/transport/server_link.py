"""A client's side: it only connects outwards, stays connected, and reconnects when it is cut off.

The server asks again for what it still needs, so nothing is kept for a lost connection.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from typing import Any

from tfdist.errors import DeadlineError, TfdistError
from tfdist.federated.transport.array_frames import FrameError
from tfdist.federated.transport.authenticated_streams import (
    BUFFER_BYTES,
    PROOF_SECONDS,
    Stream,
    check_pin,
    client_context,
    introduce,
)
from tfdist.federated.transport.client_hub import BEAT, BEATS, SILENCE_SECONDS, is_beat, reason_of
from tfdist.federated.transport.federation_keys import ClientKey, Federation
from tfdist.federated.transport.loop_thread import LoopThread

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_WAITING = 8


class ServerLink:
    """The connection to a server.

    Args:
        key: the key of this client.
        federation: the public list, with the fingerprint of the server's certificate.
        largest: the largest number of bytes of a message's arrays.
        wait_seconds: how long to wait for a server that cannot be reached, after which `take` raises DeadlineError.
        told: a function called with news for the user: connected, lost, tried again.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: ClientKey,
        federation: Federation,
        *,
        largest: int,
        wait_seconds: float = 600.0,
        told: Callable[[str], None] = lambda _: None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._host, self._port = host, port
        self._key, self._federation, self._largest = key, federation, largest
        self._wait_seconds, self._told, self._silence_seconds = wait_seconds, told, silence_seconds
        self._context = client_context()
        self._stream: Stream | None = None
        self._loop = LoopThread("tfdist-federated-client")
        self._loop.call(self._start())

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def take(self, timeout_seconds: float | None = None) -> dict[str, Any] | None:
        """Return the server's next message; None if there is none in time; raise if continuing is useless."""
        return self._loop.call(self._take(timeout_seconds))

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; False if the connection is lost, after which the server asks again."""
        return self._loop.call(self._send(message))

    def close(self) -> None:
        self._loop.close()

    async def _start(self) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_WAITING)
        self._task = asyncio.create_task(self._stay_connected())

    async def _take(self, timeout_seconds: float | None) -> dict[str, Any] | None:
        """Wait for a message or for the end of the task that receives them, whichever is first."""
        getting = asyncio.create_task(self._inbox.get())
        try:
            await asyncio.wait({getting, self._task}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            if self._task.done():
                self._task.result()  # raises
            return None
        finally:
            getting.cancel()

    async def _send(self, message: dict[str, Any]) -> bool:
        stream = self._stream
        if stream is None:
            return False
        try:
            await stream.send(message)
        except (OSError, TimeoutError, ssl.SSLError):
            stream.close()
            return False
        return True

    async def _stay_connected(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        lost = loop.time()
        while True:
            try:
                stream = await self._connect()
            except (OSError, TimeoutError, ssl.SSLError, FrameError) as error:
                if loop.time() - lost > self._wait_seconds:
                    raise DeadlineError(
                        f"the server at {self.address} could not be reached for {self._wait_seconds:g} s "
                        f"({reason_of(error)}). Check that it runs, and that this machine can connect to it.",
                        name="--server",
                    ) from error
                what = f"no connection to {self.address} ({reason_of(error)})"
            else:
                self._told(f"connected to {self.address} as {self._key.name}")
                begun = loop.time()
                why = await self._receive(stream)
                if why is None:
                    return
                what = f"the connection to {self.address} is lost: {why}"
                lost = loop.time()
                if lost - begun > self._silence_seconds:
                    pause = _FIRST_PAUSE_SECONDS
            # at once, two processes with one key would replace each other's connection as fast as they can
            self._told(f"{what}; next try in {pause:.1f} s")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # not all clients at once
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _connect(self) -> Stream:
        async with asyncio.timeout(PROOF_SECONDS):
            reader, writer = await asyncio.open_connection(
                self._host, self._port, limit=BUFFER_BYTES, ssl=self._context
            )
        stream = Stream(reader, writer, silence_seconds=self._silence_seconds)
        try:
            tls = writer.get_extra_info("ssl_object")
            check_pin(tls.getpeercert(binary_form=True), self._federation, self.address)
            await introduce(stream, self._key, self._federation)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _receive(self, stream: Stream) -> str | None:
        """Pass messages on until the connection is lost; return the reason, or None after the end of the run."""
        beats = asyncio.create_task(_beat(stream, self._silence_seconds / BEATS))
        self._stream = stream
        try:
            while True:
                message = await stream.receive(largest=self._largest)
                if not is_beat(message):
                    await self._inbox.put(message)
                kind = message.get("kind")
                if isinstance(kind, str) and kind == "end":  # the server then closes the connection
                    return None
        except (TfdistError, OSError, TimeoutError, ssl.SSLError) as error:
            return reason_of(error)
        finally:
            self._stream = None
            beats.cancel()
            stream.close()


async def _beat(stream: Stream, seconds: float) -> None:
    with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
        while True:
            await asyncio.sleep(seconds)
            await stream.send(BEAT)
