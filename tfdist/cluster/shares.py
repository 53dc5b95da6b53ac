"""The shares of a global batch: one positive weight per replica, and exact arithmetic of rows.

All code that cuts a batch asks `Shares`, so workers, the input pipeline and the reader agree on every row.

Example:
    >>> Shares.equal(3).bounds(10), Shares((3, 1)).bounds(10), Shares((9, 1)).bounds(4)
    ((0, 3, 6, 10), (0, 7, 10), (0, 3, 4))
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError

# a graph multiplies two numbers up to this one in int32
_LARGEST_TOTAL = 2**14


@dataclass(frozen=True)
class Shares:
    """One weight per replica; replica r has the rows from ``n * before(r) // total`` on, contiguous and in order.

    If a batch has a row for each replica, each replica has at least one, whatever its weight. Weights are reduced by
    their greatest common divisor, so (2, 2) is (1, 1).
    """

    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.weights:
            raise ConfigError("shares have no weights; give one per replica.", name="weights", received=())
        for weight in self.weights:
            validation.integer("a weight of a replica", weight, minimum=1)
        divisor = math.gcd(*self.weights)
        object.__setattr__(self, "weights", tuple(weight // divisor for weight in self.weights))
        if self.edges[-1] > _LARGEST_TOTAL:
            raise ConfigError(
                f"the weights of replicas add up to {self.edges[-1]}; at most {_LARGEST_TOTAL} is possible. Round them "
                "to smaller numbers.",
                name="weights",
                received=self.edges[-1],
            )

    @classmethod
    def equal(cls, replicas: int) -> Self:
        """Return the default shares: parts whose sizes differ by at most one row."""
        return cls((1,) * replicas)

    @classmethod
    def of(cls, weights: object, *, replicas: int) -> Self:
        """Return the shares that a user gives: a weight for each of this number of replicas."""
        if isinstance(weights, str) or not isinstance(weights, Sequence):
            required = "a weight for each replica, such as (3, 1)."
            raise validation.mismatch("shares", weights, required, kind=ConfigTypeError)
        found = cls(tuple(weights))
        if len(weights) != replicas:
            raise ConfigError(
                f"shares is {tuple(weights)!r}, {len(weights)} weights, and there are {replicas} replicas. Give a "
                "positive whole number for each replica, in the order of workers.",
                name="shares",
                received=tuple(weights),
            )
        return found

    @property
    def are_equal(self) -> bool:
        """Whether every replica has the same weight."""
        return len(set(self.weights)) == 1

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """The sum of the weights before each replica, and the sum of all."""
        return (0, *itertools.accumulate(self.weights))

    @property
    def all(self) -> "Share":
        """The share of one process that takes every part."""
        return Share(0, len(self.weights), self)

    def bounds(self, rows: int) -> tuple[int, ...]:
        """Return the first row of each part of a batch with this number of rows, and the number of rows."""
        found = [rows * edge // self.edges[-1] for edge in self.edges]
        replicas = len(self.weights)
        if rows < replicas:
            return tuple(found)
        lifted = itertools.accumulate(found, lambda before, edge: max(before + 1, edge))
        return tuple(min(edge, rows - replicas + place) for place, edge in enumerate(lifted))

    def below_one_row(self, rows: int) -> tuple[int, ...]:
        """Return the replicas whose weight alone would give them less than one row of such a batch."""
        return tuple(place for place, weight in enumerate(self.weights) if rows * weight < self.edges[-1])


@dataclass(frozen=True)
class Share:
    """The consecutive parts of every global batch that one process takes: ``count`` parts from ``first`` on."""

    first: int
    count: int
    shares: Shares

    @property
    def edges(self) -> tuple[int, ...]:
        """The sums of weights that bound these parts, see `Shares.edges`."""
        return self.shares.edges[self.first : self.first + self.count + 1]

    @property
    def process_count(self) -> int:
        """The number of processes that take all parts, each as many as this one."""
        return len(self.shares.weights) // self.count

    def of_process(self, process: int) -> "Share":
        """Return the share of a process that takes as many parts as this one."""
        return replace(self, first=process * self.count)

    def slices(self, rows: int) -> list[tuple[int, int, int]]:
        """Return (size, first row, end row) for each part; an empty part takes one row of a neighbour."""
        bounds = self.shares.bounds(rows)[self.first : self.first + self.count + 1]
        return [(end - begin, begin, max(end, begin + 1)) for begin, end in itertools.pairwise(bounds)]

    def rows(self, rows: int) -> tuple[int, int]:
        """Return the first row of a batch that is read, and the last one plus 1."""
        slices = self.slices(rows)
        return min(first for _, first, _ in slices), max(end for _, _, end in slices)
