"""The bound and the record of the staleness of gradients.

The version of the weights is the number of updates that were applied to them. A gradient that was asked for at version
p and is applied at version v has staleness v - p: that many updates have changed the weights since its worker began to
read them.
"""

from collections import Counter
from dataclasses import dataclass, field

from tfdist.validation import integer


class Bound:
    """A bound that decides which gradients may be started and applied, so that none is staler than the bound.

    With k gradients under way, one of them will be applied last, after k - 1 others: so at most ``bound + 1`` are under
    way at a time, and to keep n workers busy the bound must be at least n - 1.

    Example:
        >>> bound = Bound(1)
        >>> old, new = bound.start(), bound.start()
        >>> bound.may_start()              # a third one would be applied after two others
        False
        >>> bound.apply(old)
        0
        >>> third = bound.start()
        >>> bound.may_apply(third)         # `new` would then be applied after two others
        False
        >>> bound.apply(new), bound.apply(third)
        (1, 1)

    Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013. There
    a worker may be so many of its own steps ahead of the slowest; here updates are counted, which is what a gradient
    suffers from, whatever the number of workers.
    """

    def __init__(self, bound: int | None) -> None:
        self.bound = None if bound is None else integer("max_staleness", bound, minimum=0)
        self.version = 0
        self._tickets = 0
        self._under_way: dict[int, int] = {}  # ticket -> version when it was started, oldest first

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def may_start(self) -> bool:
        """True if one more gradient can be applied within the bound."""
        return self.bound is None or len(self._under_way) <= self.bound

    def start(self) -> int:
        """Take note of a request for a gradient; return its ticket."""
        self._tickets += 1
        self._under_way[self._tickets] = self.version
        return self._tickets

    def may_apply(self, ticket: int) -> bool:
        """True if the gradient can be applied now and every older one later, all within the bound."""
        if self.bound is None:
            return True
        for place, (other, started) in enumerate(self._under_way.items()):
            if other == ticket:
                return True
            if self.version + 1 + place - started > self.bound:
                return False
        raise KeyError(ticket)

    def apply(self, ticket: int) -> int:
        """Note that the gradient is applied; return its staleness."""
        staleness = self.version - self._under_way.pop(ticket)
        self.version += 1
        return staleness

    def drop(self, ticket: int) -> None:
        self._under_way.pop(ticket, None)


@dataclass
class Distribution:
    """The distribution of the staleness of applied gradients.

    Example:
        >>> seen = Distribution()
        >>> for staleness in (0, 1, 1, 4):
        ...     seen.add(staleness)
        >>> seen.count, seen.mean, seen.quantile(0.5), seen.largest
        (4, 1.5, 1, 4)
        >>> print(seen)
        4 gradients, staleness mean 1.5, median 1, 95 % at most 4, largest 4
    """

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, staleness: int) -> None:
        self.counts[staleness] += 1

    @property
    def count(self) -> int:
        return self.counts.total()

    @property
    def mean(self) -> float:
        total = sum(staleness * times for staleness, times in self.counts.items())
        return total / self.count if self.counts else 0.0

    @property
    def largest(self) -> int:
        return max(self.counts, default=0)

    def quantile(self, share: float) -> int:
        """Return the smallest staleness that at least this share of the gradients did not exceed."""
        below = 0
        for staleness in sorted(self.counts):
            below += self.counts[staleness]
            if below >= share * self.count:
                return staleness
        return 0

    def __str__(self) -> str:
        return (
            f"{self.count} gradients, staleness mean {self.mean:.3g}, median {self.quantile(0.5)}, 95 % at most "
            f"{self.quantile(0.95)}, largest {self.largest}"
        )
