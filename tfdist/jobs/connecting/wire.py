"""The messages between a job and a host agent: JSON with its length, over a connection.

Nothing that is read is executed or unpickled. A preamble comes before the first message, so that output of login
scripts is skipped, and shown if nothing else arrives.
"""

import hashlib
import hmac
import json
import os
import struct
import threading
from typing import Any

PREAMBLE = b"tfdist host agent 1\n"
SILENCE_SECONDS = 60.0  # after which the other side counts as lost; each says something every second
BEAT_SECONDS = 1.0

_LENGTH = struct.Struct("<I")
_LONGEST = 64 << 20  # bytes of a message
_LONGEST_GREETING = 1 << 20
_CHUNK = 1 << 16


class WireError(ConnectionError):
    """Raised if the other side is gone, or has sent invalid data."""


class Seal:
    """A seal that signs sent data and checks received data, so that nothing is added, left out or moved."""

    SIZE = hashlib.sha256().digest_size

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending = sending
        self._receiving = receiving
        self._sent = 0
        self._received = 0

    def sign(self, data: bytes) -> bytes:
        self._sent += 1
        return _tag(self._sending, self._sent, data)

    def check(self, tag: bytes, data: bytes) -> bool:
        self._received += 1
        return hmac.compare_digest(tag, _tag(self._receiving, self._received, data))


def _tag(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")


class Wire:
    """A channel of messages over two descriptors, which belong to the caller."""

    def __init__(self, reading: int, writing: int, seal: Seal | None = None) -> None:
        self._reading = reading
        self._writing = writing
        self._seal = seal
        self._buffer = bytearray()
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._write(PREAMBLE)

    def meet(self) -> bytes:
        """Wait until messages follow; return the bytes before them."""
        while (place := self._buffer.find(PREAMBLE)) < 0:
            if len(self._buffer) > _LONGEST_GREETING or not self._read():
                raise WireError(bytes(self._buffer[:_LONGEST_GREETING]).decode(errors="replace"))
        greeting = bytes(self._buffer[:place])
        del self._buffer[: place + len(PREAMBLE)]
        return greeting

    def send(self, message: dict[str, Any]) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that are not a message; any thread may call this."""
        with self._lock:
            tag = b"" if self._seal is None else self._seal.sign(data)
            self._write(_LENGTH.pack(len(data)) + tag + data)

    def end(self) -> None:
        """Send nothing more, from any thread: the number of a closed descriptor may soon be another connection's."""
        with self._lock:
            self._writing = -1

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the other side is gone, or does not speak the protocol."""
        data = self.receive_bytes()
        try:
            message = None if data is None else json.loads(data)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def receive_bytes(self) -> bytes | None:
        """Return the next bytes; None if the other side is gone, or its signature is wrong."""
        header = self._take(_LENGTH.size)
        length = _LENGTH.unpack(header)[0] if header else _LONGEST + 1
        tag = self._take(0 if self._seal is None else Seal.SIZE) if length <= _LONGEST else None
        data = None if tag is None else self._take(length)
        if data is not None and tag and self._seal is not None and not self._seal.check(tag, data):
            return None
        return data

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._writing, view) :]
            except OSError as error:
                raise WireError(str(error)) from error

    def _take(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            if not self._read():
                return None
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _read(self) -> bool:
        try:
            data = os.read(self._reading, _CHUNK)
        except OSError:
            return False
        self._buffer += data
        return bool(data)
