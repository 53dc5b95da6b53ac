"""Fragments of a model's weights, equal in size, which are exchanged at different steps."""

import math
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


def boxes(shape: Sequence[int], begin: int, end: int) -> list[tuple[slice, ...]]:
    """Return the boxes, in order, that make up the numbers from `begin` up to `end` of an array, flattened by rows.

    Example:
        >>> boxes([2, 4], 2, 8)
        [(slice(0, 1, None), slice(2, 4, None)), (slice(1, 2, None), slice(0, 4, None))]
    """
    if not shape:
        return [()] if begin < end else []
    row = math.prod(shape[1:])
    (first, before), (last, after) = divmod(begin, row), divmod(end, row)
    if first == last:
        return _in_row(first, shape, before, after)
    whole = first + (before > 0)
    found = _in_row(first, shape, before, row) if before else []
    found += [(slice(whole, last), *(slice(0, size) for size in shape[1:]))] if whole < last else []
    return found + (_in_row(last, shape, 0, after) if after else [])


def _in_row(row: int, shape: Sequence[int], begin: int, end: int) -> list[tuple[slice, ...]]:
    return [(slice(row, row + 1), *box) for box in boxes(shape[1:], begin, end)]
