"""Late packets on a slow network: a process that holds frames between two devices for some time.

    python -m tfdist.bench.workers.delays SECONDS PORT WIRE [PORT WIRE ...]

A frame that arrives at a PORT leaves at its WIRE the given seconds later; a frame that arrives at a WIRE leaves at
once. The kernel can do this too (`netem`), but kernels of many containers and virtual machines come without it, and a
process needs nothing but root. Frames are forwarded as the kernel has them: up to 64 KiB of a stream in one, with
checksums still to be computed. So 1 Gbit/s needs only some thousand frames a second. The process ends when its standard
input does, so it never outlives its starter.
"""

import collections
import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfdist.errors import TfdistError

_ALL_PROTOCOLS = 3
_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h; Python has no names for them
_SEND_BUFFER_FORCE, _RECEIVE_BUFFER_FORCE = 32, 33  # asm/socket.h
_BUFFER_BYTES = 64 << 20
_LARGEST_FRAME = 128 << 10
_AT_ONCE = 64  # frames from one device before the others have their turn
_END_SECONDS = 10.0
_READY = "ready\n"


class Held:
    """A queue in which every frame waits for the same time.

    Example:
        >>> held = Held(0.5)
        >>> held.add(10.0, "a frame")
        >>> held.wait(10.2), held.due(10.2), held.due(10.5), held.wait(10.5)
        (0.3000000000000007, [], ['a frame'], None)
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._queue: collections.deque[tuple[float, Any]] = collections.deque()

    def add(self, now: float, what: Any) -> None:
        self._queue.append((now + self._seconds, what))

    def due(self, now: float) -> list[Any]:
        """Return and remove the frames that have waited long enough."""
        found = []
        while self._queue and self._queue[0][0] <= now:
            found.append(self._queue.popleft()[1])
        return found

    def wait(self, now: float) -> float | None:
        """Return the seconds until a frame is due; None if none waits."""
        return max(0.0, self._queue[0][0] - now) if self._queue else None


def relay(seconds: float, pairs: Sequence[tuple[socket.socket, socket.socket]], end: Any) -> None:
    """Forward frames between pairs of sockets until `end` is readable."""
    held = Held(seconds)
    wires = dict(pairs)
    ports = {wire: port for port, wire in pairs}
    while True:
        now = time.monotonic()
        for wire, frame in held.due(now):
            _send(wire, frame)
        readable, _, _ = select.select([end, *wires, *ports], [], [], held.wait(now))
        if end in readable:
            return
        for one in readable:
            for frame in _frames(one):
                if one in wires:
                    held.add(time.monotonic(), (wires[one], frame))
                else:
                    _send(ports[one], frame)


def _frames(device: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        for _ in range(_AT_ONCE):
            yield device.recv(_LARGEST_FRAME, socket.MSG_DONTWAIT)


def _send(device: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # a queue that is full loses packets, as one of a network does
        device.send(frame, socket.MSG_DONTWAIT)


@contextlib.contextmanager
def holding(inside: Sequence[str], seconds: float, pairs: Sequence[tuple[str, str]]) -> Iterator[None]:
    names = [name for pair in pairs for name in pair]
    process = subprocess.Popen(
        [*inside, sys.executable, "-m", __name__, str(seconds), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which then ends it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        if said != _READY:
            raise TfdistError(f"packets cannot be delayed: {said}{process.stdout.read()}".rstrip())
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> None:
    names = sys.argv[2:]
    opened = [_opened(name) for name in names]
    sys.stdout.write(_READY)
    sys.stdout.flush()
    relay(float(sys.argv[1]), list(zip(opened[::2], opened[1::2], strict=True)), sys.stdin)


def _opened(device: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # receives nothing before it is bound
    made.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for option in (_SEND_BUFFER_FORCE, _RECEIVE_BUFFER_FORCE):
        made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    made.bind((device, _ALL_PROTOCOLS))
    return made


if __name__ == "__main__":
    main()
