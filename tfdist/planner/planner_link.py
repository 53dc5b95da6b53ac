"""The link between devices: the times of sending and of reducing. Loads no TensorFlow."""

import itertools
import re
from dataclasses import dataclass
from typing import NamedTuple

from tfdist import validation
from tfdist.errors import ConfigError

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# What tfdist's collectives do between hosts; native/collectives/message.h and cost.h have the same numbers.
#: the largest sum for which each member may receive all numbers of all others
_LARGEST_ONE_SHOT = 1 << 20
#: the largest message that is sent before its receiver permits it
_LARGEST_UNASKED = 64 << 10
#: on a line below this rate, sums of a few members go around a ring
_SLOW_LINE = 40e6
_MOST_AROUND = 8


class Transfer(NamedTuple):
    """An exchange: the seconds in which it occupies the link, and those in which it is under way besides."""

    line: float
    late: float = 0.0

    @property
    def seconds(self) -> float:
        """The time from the beginning to the arrival, if nothing else is under way."""
        return self.line + self.late


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
        is_direct: whether each device sends the parts of a sum straight to all others, as tfdist's collectives do over
            TCP, and not around a ring. Then the latency of a sum hardly depends on the number of devices, and sums that
            are under way at the same time share only the bandwidth.

    Example:
        >>> line = Link.parse("1gbit", delay_ms=1.0)
        >>> line.send_seconds(125_000_000), line.all_reduce_seconds(125_000_000, 2)
        (1.001, 1.002)
    """

    latency_seconds: float
    bytes_per_second: float
    is_local: bool = False
    add_seconds_per_byte: float = 0.0
    is_direct: bool = False

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

        On the returned link, both take the time of `summing`.

        Example:
            >>> link = Link.of_direct((0, 0.005), (2_000_000, 0.017), 2)
            >>> link.latency_seconds, round(link.bytes_per_second)
            (0.005, 1000000000)
        """

        def link(few_way: tuple[int, float], many_way: tuple[int, float]) -> "Link":
            (some, few_part), (most, many_part) = few_way, many_way
            sent_few, sent_many = few_part * few[0], many_part * many[0]
            per_byte = max((some * many[1] - most * few[1]) / (some * sent_many - most * sent_few), 1e-15)
            latency = max(few[1] - per_byte * sent_few, 0.0) / some
            return cls(latency_seconds=latency, bytes_per_second=1 / per_byte, is_direct=True)

        def error(found: "Link") -> float:
            pairs = (few, many)
            return sum(abs(found.all_reduce_seconds(size, devices) / taken - 1) for size, taken in pairs if taken)

        # the latencies, and the part of the bytes that a device sends, of each way that a sum may take
        whole, parts = float(devices - 1), 2 * (devices - 1) / devices
        few_ways = [(1, whole), (2, parts)]
        many_ways = [(3, parts), (2, parts), (devices + 1, parts), (2, whole), (1, whole)]
        return min((link(*ways) for ways in itertools.product(few_ways, many_ways)), key=error)

    def send_seconds(self, size: float) -> float:
        """Return the seconds until this many bytes have arrived; 0 bytes take no time."""
        return self.latency_seconds + size / self.bytes_per_second if size else 0.0

    def all_reduce_seconds(self, size: float, devices: int) -> float:
        """Return the seconds of an all_reduce of this many bytes on each device.

        In a ring they are 2 (n - 1) (latency + size / n rate): a reduce_scatter and an all_gather in n - 1 steps each.
        Adding, if it is counted, takes n - 1 parts.
        """
        return self.summing(size, devices).seconds

    def summing(self, size: float, devices: int) -> Transfer:
        """Return an all_reduce of this many bytes on each device.

        Straight to each other, devices send in one round all numbers, or in two rounds the parts. In one round each
        device adds up everything. In two rounds each one adds up a part for all. Permissions for the second round are
        there before it begins. On a slow line the sums go around a ring.
        """
        if devices == 1 or not size:
            return Transfer(0.0)
        if not self.is_direct:
            both = 2 * (self.latency_seconds + size / devices / self.bytes_per_second)
            return Transfer((devices - 1) * (both + size / devices * self.add_seconds_per_byte))
        first = self.scattering(size, devices)
        rounds = devices - 1 if self._goes_around(size, devices) else 1
        two = Transfer(2 * first.line, first.late + rounds * self.latency_seconds)
        if size > _LARGEST_ONE_SHOT:
            return two
        each = size / self.bytes_per_second + size * self.add_seconds_per_byte
        one = Transfer((devices - 1) * each, self._arrival_seconds(size))
        return min(two, one, key=lambda found: found.seconds)

    def scattering(self, size: float, devices: int) -> Transfer:
        """Return a reduce_scatter of this many bytes on each device: each gets the sum of its part."""
        if not self.is_direct or devices == 1 or not size:
            return Transfer(self.all_reduce_seconds(size, devices) / 2)
        part = (devices - 1) / devices * size
        line = part / self.bytes_per_second + part * self.add_seconds_per_byte / 2
        return Transfer(line, self._arrival_seconds(size / devices))

    def gathering(self, size: float, devices: int) -> Transfer:
        """Return an all_gather to this many bytes on each device, of equal parts: as many as a reduce_scatter sends."""
        return self.scattering(size, devices)

    def _goes_around(self, size: float, devices: int) -> bool:
        """Return whether the second half of a direct sum goes around a ring, where connections do not share a line."""
        is_slow = self.bytes_per_second < _SLOW_LINE and 2 < devices <= _MOST_AROUND
        return is_slow and size > _LARGEST_ONE_SHOT

    def _arrival_seconds(self, size: float) -> float:
        """Return the latency of a message of this many bytes, which waits for its receiver's permission if large."""
        return self.latency_seconds * (1 if size <= _LARGEST_UNASKED else 2)

    def __str__(self) -> str:
        where = ", between processes of this host" if self.is_local else ""
        gigabits = 8 * self.bytes_per_second / 1e9
        rate = f"{gigabits:,.0f}" if gigabits >= 100 else f"{gigabits:.3g}"
        return f"{rate} Gbit/s, {1e6 * self.latency_seconds:.3g} us{where}"
