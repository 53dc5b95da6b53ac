"""Messages between a pool and its workers over pipes: JSON, preceded by its length."""

import json
import os
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
_LARGEST_BYTES = 64 * 2**20


def pack(message: Any) -> bytes:
    """Return a message as JSON in UTF-8, preceded by its length in four bytes."""
    try:
        body = json.dumps(message).encode()
    except TypeError as error:
        raise ValueError(
            f"the message holds what JSON cannot: {error}. Return numbers, texts, lists and dicts."
        ) from error
    if len(body) > _LARGEST_BYTES:
        raise ValueError(
            f"the message has {len(body)} bytes; {_LARGEST_BYTES} is the end. Hand large arrays over in files."
        )
    return _LENGTH.pack(len(body)) + body


def write(descriptor: int, message: Any) -> None:
    """Write a whole message to a pipe."""
    data = pack(message)
    while data:
        data = data[os.write(descriptor, data) :]


def read(descriptor: int) -> Any:
    """Return the next message of a pipe; wait until it is complete."""
    return json.loads(_exactly(descriptor, _LENGTH.unpack(_exactly(descriptor, _LENGTH.size))[0]))


def _exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, count)
        if not part:
            raise EOFError("the other end of the pipe was closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Mailbox:
    """A buffer that turns bytes into whole messages, so that a reader never waits in the middle of one."""

    def __init__(self) -> None:
        self._bytes = bytearray()  # a large message comes in a thousand pieces

    def put(self, data: bytes) -> list[Any]:
        """Add bytes; return the messages that are complete."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack(self._bytes[: _LENGTH.size])[0]
            if len(self._bytes) < end:
                break
            messages.append(json.loads(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return messages
