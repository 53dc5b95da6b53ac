"""Hosts with several devices each, and the links between and inside them. Loads no TensorFlow."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from tfdist import validation
from tfdist.planner.planner_link import Link

#: the largest sum for which each member may receive all numbers of all others, as tfdist's collectives do
_LARGEST_ONE_SHOT = 1 << 20
#: the largest message that is sent before its receiver permits it
_LARGEST_UNASKED = 64 << 10


class Transfer(NamedTuple):
    """An exchange: the seconds in which it occupies the link, and those in which it is under way besides."""

    line: float
    late: float = 0.0

    @property
    def seconds(self) -> float:
        """The time from the beginning to the arrival, if nothing else is under way."""
        return self.line + self.late


@dataclass(frozen=True, kw_only=True)
class HostNetwork:
    """The links of a job.

    Attributes:
        link: the link between hosts; all devices of a host share it.
        per_host: the number of devices of a host.
        inside: the link between devices of a host; None: the same as between hosts.
        has_trees: whether sums use a tree, as in NCCL, if it takes less time than a ring.
        is_direct: whether each host sends the parts of a sum straight to all others, as tfdist's collectives do over
            TCP, and not around a ring. Then the latency of a sum does not depend on the number of hosts, and sums that
            are under way at the same time share only the rate of the link.

    Example:
        >>> network = HostNetwork(link=Link.parse("8gbit", delay_ms=0.0))
        >>> network.all_reduce_seconds(1e9, 2)
        1.0
    """

    link: Link
    per_host: int = 1
    inside: Link | None = None
    has_trees: bool = False
    is_direct: bool = False

    def __post_init__(self) -> None:
        validation.integer("per_host", self.per_host, minimum=1)

    def hosts(self, devices: int) -> int:
        """Return the number of hosts for this many devices."""
        return math.ceil(devices / self.per_host)

    def is_local(self, devices: int) -> bool:
        """Return whether the processors that compute also copy everything that this many devices exchange."""
        if self.hosts(devices) == 1 and self.inside is not None:
            return self.inside.is_local
        return self.link.is_local

    def all_reduce_seconds(self, size: float, devices: int) -> float:
        """Return the seconds of an all_reduce of this many bytes on each device.

        Each host reduces to parts, devices in equal places of all hosts reduce their part, and each host gathers the
        sums.
        """
        if devices == 1 or not size:
            return 0.0
        if self.inside is None:
            return self._between(size, devices)
        within = self.inside.all_reduce_seconds(size, min(devices, self.per_host))
        return within + self._between(size, self.hosts(devices))

    def summing(self, size: float, devices: int) -> Transfer:
        """Return an all_reduce of this many bytes on each device, with its latency apart where others may hide it."""
        if not self._has_direct_sums or devices == 1 or not size:
            return Transfer(self.all_reduce_seconds(size, devices))
        return _direct(self.link, size, devices)

    def half(self, size: float, devices: int) -> Transfer:
        """Return the first or the second half of an all_reduce: each device gets its part, or all have the parts."""
        if not self._has_direct_sums or devices == 1 or not size:
            return Transfer(self.all_reduce_seconds(size, devices) / 2)
        return _half(self.link, size, devices)

    @property
    def _has_direct_sums(self) -> bool:
        return self.is_direct and self.inside is None

    def _between(self, size: float, members: int) -> float:
        if self.is_direct and members > 1:
            return _direct(self.link, size, members).seconds
        ring = self.link.all_reduce_seconds(size, members)
        return min(ring, _tree_seconds(self.link, size, members)) if self.has_trees else ring


def _direct(link: Link, size: float, members: int) -> Transfer:
    """Return an all_reduce in which members send straight to each other: in one round all numbers, or in two the parts.

    In one round each member sends its numbers to all others, and adds up everything. In two rounds each one adds up a
    part for all. Permissions for the second round are there before it begins.
    """
    half = _half(link, size, members)
    two = Transfer(2 * half.line, half.late + link.latency_seconds)
    one = Transfer((members - 1) * _line_seconds(link, size), _arrival_seconds(link, size))
    return min(two, one, key=lambda found: found.seconds) if size <= _LARGEST_ONE_SHOT else two


def _half(link: Link, size: float, members: int) -> Transfer:
    part = (members - 1) / members * size
    line = part / link.bytes_per_second + part * link.add_seconds_per_byte / 2
    return Transfer(line, _arrival_seconds(link, size / members))


def _arrival_seconds(link: Link, size: float) -> float:
    """Return the latency of a message of this many bytes, which waits for its receiver's permission unless small."""
    return link.latency_seconds * (1 if size <= _LARGEST_UNASKED else 2)


def _line_seconds(link: Link, size: float) -> float:
    return size / link.bytes_per_second + size * link.add_seconds_per_byte


def _tree_seconds(link: Link, size: float, members: int) -> float:
    """Return the seconds of two binary trees, each with half of the bytes in pieces, up and down the levels.

    The latency of a piece counts once for each level. Source: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms
    for full bandwidth broadcast, reduction and scan", 2009; in NCCL since 2.4.
    """
    if members == 1:
        return 0.0
    each = 2 / link.bytes_per_second + link.add_seconds_per_byte
    return 2 * math.ceil(math.log2(members)) * link.latency_seconds + size * each
