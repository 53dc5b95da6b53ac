"""How much memory a process has, as Linux tells it."""

from dataclasses import dataclass

__all__ = ["Memory", "read"]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of a process.

    Attributes:
        resident: bytes in memory now.
        most: the most that it ever had in memory, in bytes.
    """

    resident: int
    most: int


def read(status: str) -> Memory:
    """Return what /proc/PID/status says.

    Args:
        status: the text of that file.

    Example:
        >>> read("Name: python\\nVmHWM:    20 kB\\nVmRSS:    10 kB")
        Memory(resident=10240, most=20480)
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    resident, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return Memory(resident=resident, most=most)
