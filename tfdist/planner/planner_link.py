"""The link between devices: the times of sending and of reducing. Loads no TensorFlow."""

import re
from dataclasses import dataclass

from tfdist import validation
from tfdist.errors import ConfigError

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link with a latency and a bandwidth, the same between any two devices, in both directions at once.

    Attributes:
        latency_seconds: the latency of a message, at least 0.
        bytes_per_second: the bandwidth, above 0.
        is_local: whether the processors that compute also copy, as between processes of one host. Then communication
            does not overlap with computation.
        add_seconds_per_byte: the time of adding a received byte to a device's own; 0 if the bandwidth was measured with
            all_reduces, which include it.

    Example:
        >>> line = Link.parse("1gbit", delay_ms=1.0)
        >>> line.send_seconds(125_000_000), line.all_reduce_seconds(125_000_000, 2)
        (1.001, 1.002)
    """

    latency_seconds: float
    bytes_per_second: float
    is_local: bool = False
    add_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        validation.number("latency_seconds", self.latency_seconds, minimum=0)
        validation.number("bytes_per_second", self.bytes_per_second, above=0)
        validation.number("add_seconds_per_byte", self.add_seconds_per_byte, minimum=0)

    @classmethod
    def parse(cls, text: str, *, delay_ms: float = 0.05) -> "Link":
        """Return the link with a rate.

        Args:
            text: the rate, such as ``1gbit``, ``100mbit`` or ``2.5gbit``.
            delay_ms: the latency of a message in milliseconds; 0.05 as over TCP in a rack.
        Raises:
            ConfigError: the text is not a rate.
        """
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:/s)?\s*", text, re.IGNORECASE)
        if found is None or not float(found[1]):
            raise ConfigError(
                f"the link is {text!r}; it must be a rate, such as 1gbit or 100mbit.", name="link", received=text
            )
        delay = validation.number("the delay of the link", delay_ms, minimum=0)
        return cls(latency_seconds=delay / 1e3, bytes_per_second=float(found[1]) * _UNITS[found[2].lower()] / 8)

    @classmethod
    def of_all_reduces(cls, few: tuple[int, float], many: tuple[int, float]) -> "Link":
        """Return the link between two processes of a host, from the sizes in bytes and the seconds of two all_reduces.

        Example:
            >>> Link.of_all_reduces((0, 0.002), (1000, 0.003)).latency_seconds
            0.001
        """
        per_byte = max((many[1] - few[1]) / (many[0] - few[0]), 1e-15)
        latency = max(few[1] - per_byte * few[0], 0.0) / 2
        return cls(latency_seconds=latency, bytes_per_second=1 / per_byte, is_local=True)

    @classmethod
    def of_direct(cls, few: tuple[int, float], many: tuple[int, float], devices: int) -> "Link":
        """Return the link between hosts, from the sizes in bytes and the seconds of two all_reduces.

        The small one takes one latency and the large one three, as tfdist's collectives send them over TCP: for the
        permission to send, for the parts, and for their sums.

        Example:
            >>> link = Link.of_direct((0, 0.005), (1000, 0.017), 2)
            >>> link.latency_seconds, round(link.bytes_per_second)
            (0.005, 500000)
        """
        sent_few, sent_many = (devices - 1) * few[0], 2 * (devices - 1) / devices * many[0]
        per_byte = max((many[1] - 3 * few[1]) / (sent_many - 3 * sent_few), 1e-15)
        return cls(latency_seconds=max(few[1] - per_byte * sent_few, 0.0), bytes_per_second=1 / per_byte)

    def send_seconds(self, size: float) -> float:
        """Return the seconds until this many bytes have arrived; 0 bytes take no time."""
        return self.latency_seconds + size / self.bytes_per_second if size else 0.0

    def all_reduce_seconds(self, size: float, devices: int) -> float:
        """Return the seconds of an all_reduce of this many bytes on each device: 2 (n - 1) (latency + size / n rate).

        It is a ring: a reduce_scatter and an all_gather in n - 1 steps each. Adding, if it is counted, takes n - 1
            parts.
        """
        if devices == 1 or not size:
            return 0.0
        part = size / devices
        both = 2 * (self.latency_seconds + part / self.bytes_per_second)
        return (devices - 1) * (both + part * self.add_seconds_per_byte)

    def __str__(self) -> str:
        where = ", between processes of this host" if self.is_local else ""
        gigabits = 8 * self.bytes_per_second / 1e9
        rate = f"{gigabits:,.0f}" if gigabits >= 100 else f"{gigabits:.3g}"
        return f"{rate} Gbit/s, {1e6 * self.latency_seconds:.3g} us{where}"
