"""Messages between the agent and what acts for it on another host: JSON with its length before it, over a connection.

Nothing that is read is executed or unpickled. Before the first message stands a line that no shell's greeting is, so
that what a login script prints on the way is skipped, and shown if nothing else comes.
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
    """The other side is gone, or says what cannot be."""


class Seal:
    """Signs what is sent over a connection, and checks what is received: nothing is added, left out or moved.

    Example:
        >>> here, there = Seal(b"a", b"b"), Seal(b"b", b"a")
        >>> tag = here.sign(b"stop")
        >>> there.check(tag, b"stop"), there.check(tag, b"stop")       # the second is a copy of the first
        (True, False)
    """

    SIZE = hashlib.sha256().digest_size

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending = sending
        self._receiving = receiving
        self._sent = 0
        self._received = 0

    def sign(self, data: bytes) -> bytes:
        """Return what proves that these bytes are the next."""
        self._sent += 1
        return _tag(self._sending, self._sent, data)

    def check(self, tag: bytes, data: bytes) -> bool:
        """Return whether these bytes are the next, and were sent by who has the key."""
        self._received += 1
        return hmac.compare_digest(tag, _tag(self._receiving, self._received, data))


def _tag(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")


class Wire:
    """A connection, as two descriptors, which are the caller's.

    Example:
        >>> read, write = os.pipe()
        >>> wire = Wire(read, write)
        >>> wire.begin(), wire.send({"is": "here"})
        (None, None)
        >>> wire.meet(), wire.receive()
        (b'', {'is': 'here'})
    """

    def __init__(self, reading: int, writing: int, seal: Seal | None = None) -> None:
        self._reading = reading
        self._writing = writing
        self._seal = seal
        self._buffer = bytearray()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Say that messages follow."""
        with self._lock:
            self._write(PREAMBLE)

    def meet(self) -> bytes:
        """Wait until messages follow; return what was said before that."""
        while (place := self._buffer.find(PREAMBLE)) < 0:
            if len(self._buffer) > _LONGEST_GREETING or not self._read():
                raise WireError(bytes(self._buffer[:_LONGEST_GREETING]).decode(errors="replace"))
        greeting = bytes(self._buffer[:place])
        del self._buffer[: place + len(PREAMBLE)]
        return greeting

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, whole; any thread may."""
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that are no message, whole; any thread may."""
        with self._lock:
            tag = b"" if self._seal is None else self._seal.sign(data)
            self._write(_LENGTH.pack(len(data)) + tag + data)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None when the other side is gone, or does not speak like one of ours."""
        data = self.receive_bytes()
        try:
            message = None if data is None else json.loads(data)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def receive_bytes(self) -> bytes | None:
        """Return what the other side sends next; None when it is gone, or has not signed it as one of ours does."""
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
