"""Fragments of a model's weights, equal in size, which are exchanged at different steps."""

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """The numbers from `begin` up to `end` of one variable, flattened."""

    variable: int
    begin: int
    end: int


def divided(sizes: Sequence[int], count: int) -> list[list[Piece]]:
    """Return the pieces of each fragment, in the order of the variables.

    Example:
        >>> divided([4, 2], 2)
        [[Piece(variable=0, begin=0, end=3)], [Piece(variable=0, begin=3, end=4), Piece(variable=1, begin=0, end=2)]]
    """
    total = sum(sizes)
    edges = [total * number // count for number in range(count + 1)]
    found: list[list[Piece]] = [[] for _ in range(count)]
    first = 0
    for variable, size in enumerate(sizes):
        for fragment in range(count):
            begin, end = max(first, edges[fragment]), min(first + size, edges[fragment + 1])
            if begin < end:
                found[fragment].append(Piece(variable, begin - first, end - first))
        first += size
    return found
