"""What this process's network interface has sent, by the kernel's counters."""

from pathlib import Path

from tfdist.bench.workers.links import DEVICE

__all__ = ["sent", "sent_bytes", "since"]

_COUNTERS = Path("/proc/self/net/dev")  # of the network namespace in which this process is
_SENT = 8  # the column after those of what was received


def sent_bytes() -> int | None:
    """Return how many bytes have left by `DEVICE`: of a worker behind a link, all its own; None where there is none."""
    try:
        text = _COUNTERS.read_text(encoding="ascii")
    except OSError:
        return None
    return sent(text, DEVICE)


def since(before: int | None) -> int | None:
    """Return how many bytes have left since the counter stood there; None where there is none."""
    now = None if before is None else sent_bytes()
    return None if before is None or now is None else now - before


def sent(text: str, device: str) -> int | None:
    """Return the bytes that a device has sent.

    Args:
        text: of ``/proc/net/dev``.
        device: its name.

    Example:
        >>> sent("  eth0: 100 1 0 0 0 0 0 0 250 2 0 0 0 0 0 0", "eth0")
        250
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == device:
            return int(counters.split()[_SENT])
    return None
