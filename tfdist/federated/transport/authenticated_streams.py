"""One connection: TLS 1.3 with a pinned certificate, a proof of the client's key, and frames in both directions.

The server speaks first, with a random number. The client signs it together with the fingerprint that it has pinned, so
that a signature is worth nothing at another server or at another time.
"""

import asyncio
import contextlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tfdist.errors import ConfigError
from tfdist.federated.transport import array_frames
from tfdist.federated.transport.array_frames import FrameError
from tfdist.federated.transport.federation_keys import ClientKey, Federation, ServerKey, fingerprint_of

PROOF_SECONDS = 15.0  # for a new connection to prove itself
_PURPOSE = b"tfdist federated connection 1\0"
_NONCE_BYTES = 32
_LARGEST_GREETING = 4096
_CHUNK = 1 << 18
_END_SECONDS = 5.0
BUFFER_BYTES = 1 << 20  # of a connection, read and not yet taken


def server_context(key: ServerKey) -> ssl.SSLContext:
    """Return the TLS context of the server. OpenSSL reads private keys only from files, so one exists for a moment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.pem"
        path.touch(mode=0o600)
        path.write_text(key.certificate + key.private)
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise ConfigError("the server's certificate and its private key do not belong together.") from error
    return context


def client_context() -> ssl.SSLContext:
    """Return the TLS context of a client, which compares the certificate with the pinned one itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Stream:
    """Frames over one connection of asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, silence_seconds: float) -> None:
        self._reader, self._writer, self._silence_seconds = reader, writer, silence_seconds
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message; return when the other side has taken most of it."""
        buffers = array_frames.pack(message)
        async with self._sending:
            for buffer in buffers:
                for start in range(0, len(buffer), _CHUNK):
                    self._writer.write(buffer[start : start + _CHUNK])
                    async with asyncio.timeout(self._silence_seconds):
                        await self._writer.drain()

    async def receive(self, *, largest: int) -> dict[str, Any]:
        """Return the next message; raise if the other side is silent for too long, before a frame or within it."""
        header, body = array_frames.read_head(await self._take(array_frames.HEAD.size), largest=largest)
        return array_frames.unpack(await self._take(header), await self._take(body))

    async def _take(self, count: int) -> bytes:
        parts = []
        while count:
            async with asyncio.timeout(self._silence_seconds):
                part = await self._reader.read(min(count, _CHUNK))
            if not part:
                raise ConnectionResetError("the connection has ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    async def finish(self) -> None:
        """End the connection when all has been sent, or the other side does not take it."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout(_END_SECONDS):
                await self._writer.wait_closed()

    def close(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()


def proof_statement(fingerprint: str, nonce: bytes, name: str) -> bytes:
    """Return the statement that a client signs to be let in."""
    return _PURPOSE + bytes.fromhex(fingerprint) + nonce + name.encode()


async def admit(stream: Stream, fingerprint: str, federation: Federation) -> str:
    """Carry out the server's side of a greeting; return the name of the client that has proved its identity."""
    nonce = os.urandom(_NONCE_BYTES)
    await stream.send({"nonce": nonce})
    async with asyncio.timeout(PROOF_SECONDS):
        found = await stream.receive(largest=_LARGEST_GREETING)
    name, signature = found.get("name"), found.get("signature")
    try:
        if not isinstance(name, str) or not isinstance(signature, bytes) or name not in federation.clients:
            raise InvalidSignature
        public = Ed25519PublicKey.from_public_bytes(federation.clients[name])
        public.verify(signature, proof_statement(fingerprint, nonce, name))
    except InvalidSignature:
        await stream.send({"refused": "the key does not belong to a client on this server's list"})
        raise FrameError(
            "it has no key of a client on the list.", name=name if isinstance(name, str) else None
        ) from None
    await stream.send({"admitted": name})
    return name


def check_pin(certificate: bytes | None, federation: Federation, address: str) -> None:
    """Refuse a server with another certificate before anything is sent to it."""
    if certificate is None or fingerprint_of(certificate) != federation.fingerprint:
        seen = "none" if certificate is None else fingerprint_of(certificate)
        raise ConfigError(
            f"the server at {address} has another certificate than the one in the list ({seen[:16]}..., expected "
            f"{federation.fingerprint[:16]}...). Nothing was sent. Check the address, or get the new list by a channel "
            "that you trust.",
            name="--server",
            received=seen,
        )


async def introduce(stream: Stream, key: ClientKey, federation: Federation) -> None:
    """Carry out the client's side of a greeting."""
    async with asyncio.timeout(PROOF_SECONDS):
        nonce = (await stream.receive(largest=_LARGEST_GREETING)).get("nonce")
        if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
            raise FrameError("the server's greeting has no random number.")
        signature = key.private.sign(proof_statement(federation.fingerprint, nonce, key.name))
        await stream.send({"name": key.name, "signature": signature})
        answer = await stream.receive(largest=_LARGEST_GREETING)
    if answer.get("admitted") != key.name:
        raise ConfigError(
            f"the server refuses client {key.name}: {answer.get('refused', 'it gave no reason')}. Add its public key "
            f"{key.public.hex()} on the server.",
            name=key.name,
        )
