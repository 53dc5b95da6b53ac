"""Messages between the agent and what acts for it on another host: JSON with its length before it, over a connection.

Nothing that is read is executed or unpickled. Before the first message stands a line that no shell's greeting is, so
that what a login script prints on the way is skipped, and shown if nothing else comes.
"""

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


class Wire:
    """A connection, as two descriptors, which are the caller's.

    Args:
        reading: what is read from.
        writing: what is written to; may be the same.

    Example:
        >>> read, write = os.pipe()
        >>> wire = Wire(read, write)
        >>> wire.begin(), wire.send({"is": "here"})
        (None, None)
        >>> wire.meet(), wire.receive()
        (b'', {'is': 'here'})
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._buffer = bytearray()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Say that messages follow."""
        self._write(PREAMBLE)

    def meet(self) -> bytes:
        """Wait until messages follow; return what was said before that.

        Raises:
            WireError: the other side is gone, and its message is what was said before.
        """
        while (place := self._buffer.find(PREAMBLE)) < 0:
            if len(self._buffer) > _LONGEST_GREETING or not self._read():
                raise WireError(bytes(self._buffer[:_LONGEST_GREETING]).decode(errors="replace"))
        greeting = bytes(self._buffer[:place])
        del self._buffer[: place + len(PREAMBLE)]
        return greeting

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, whole; any thread may.

        Raises:
            WireError: the other side is gone.
        """
        data = json.dumps(message).encode()
        self._write(_LENGTH.pack(len(data)) + data)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None when the other side is gone, or does not speak like one of ours."""
        header = self._take(_LENGTH.size)
        length = _LENGTH.unpack(header)[0] if header else _LONGEST + 1
        data = self._take(length) if length <= _LONGEST else None
        try:
            message = None if data is None else json.loads(data)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def _write(self, data: bytes) -> None:
        with self._lock:
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
