"""What this process's network interface has sent, by the kernel's counters."""

from pathlib import Path
from typing import NamedTuple

from tfdist.bench.workers.slow_network import DEVICE

__all__ = ["HEADER_BYTES", "Sent", "counted", "sent", "since"]

#: headers of a packet: Ethernet 14, IPv4 20, TCP 20 with its time stamps 12
HEADER_BYTES = 66

_COUNTERS = Path("/proc/self/net/dev")  # of the network namespace in which this process is
_BYTES, _PACKETS = 8, 9  # the columns after those of what was received


class Sent(NamedTuple):
    """Sent bytes with headers, and sent packets; a packet that the kernel segments later counts once."""

    bytes: int
    packets: int

    @property
    def payload(self) -> int:
        """The bytes without the headers of packets; nearly all are TCP's."""
        return self.bytes - HEADER_BYTES * self.packets


def sent() -> Sent | None:
    """The counters of `DEVICE`, which carries only one worker's traffic behind a link; None where there is none."""
    try:
        text = _COUNTERS.read_text(encoding="ascii")
    except OSError:
        return None
    return counted(text, DEVICE)


def since(before: Sent | None) -> Sent | None:
    """The traffic since the counters had these values; None where there is none."""
    now = None if before is None else sent()
    return None if before is None or now is None else Sent(now.bytes - before.bytes, now.packets - before.packets)


def counted(text: str, device: str) -> Sent | None:
    """Return what a device has sent.

    Example:
        >>> counted("  eth0: 100 1 0 0 0 0 0 0 250 2 0 0 0 0 0 0", "eth0")
        Sent(bytes=250, packets=2)
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == device:
            columns = counters.split()
            return Sent(int(columns[_BYTES]), int(columns[_PACKETS]))
    return None
