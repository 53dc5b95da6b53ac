"""Hosts with several devices each, and the links between and inside them. Loads no TensorFlow."""

import math
from dataclasses import dataclass

from tfdist import validation
from tfdist.planner.planner_link import Link, Transfer


@dataclass(frozen=True, kw_only=True)
class HostNetwork:
    """The links of a job.

    Example:
        >>> network = HostNetwork(link=Link.parse("8gbit", delay_ms=0.0))
        >>> network.all_reduce_seconds(1e9, 2)
        1.0
    """

    link: Link  # the link between hosts; all devices of a host share it
    per_host: int = 1  # the number of devices of a host
    inside: Link | None = None  # the link between devices of a host; None: the same as between hosts
    has_trees: bool = False  # whether sums use a tree, as in NCCL, if it takes less time than a ring

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
        if self.inside is None:
            return self._between(size, devices)
        within = self.inside.all_reduce_seconds(size, min(devices, self.per_host))
        return within + self._between(size, self.hosts(devices))

    def summing(self, size: float, devices: int) -> Transfer:
        """Return an all_reduce of this many bytes on each device, with its latency apart where others may hide it."""
        return self.link.summing(size, devices) if self._is_flat else Transfer(self.all_reduce_seconds(size, devices))

    def halving(self, size: float, devices: int) -> Transfer:
        """Return half of an all_reduce of this many bytes on each device: a reduce_scatter, or an all_gather."""
        if self._is_flat:
            return self.link.scattering(size, devices)
        return Transfer(self.all_reduce_seconds(size, devices) / 2)

    @property
    def _is_flat(self) -> bool:
        return self.inside is None and not self.has_trees

    def _between(self, size: float, members: int) -> float:
        sums = self.link.all_reduce_seconds(size, members)
        return min(sums, _tree_seconds(self.link, size, members)) if self.has_trees else sums


def _tree_seconds(link: Link, size: float, members: int) -> float:
    """Return the seconds of two binary trees, each with half of the bytes in pieces, up and down the levels.

    The latency of a piece counts once for each level. Source: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms
    for full bandwidth broadcast, reduction and scan", 2009; in NCCL since 2.4.
    """
    each = 2 / link.bytes_per_second + link.add_seconds_per_byte
    return 2 * math.ceil(math.log2(members)) * link.latency_seconds + size * each
