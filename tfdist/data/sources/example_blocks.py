"""Blocks of examples: how large, and how they are cut.

Example:
    >>> [len(part["x"]) for part in cut(iter([{"x": [1, 2, 3]}, {"x": [4, 5, 6]}]), 1, 5)]
    [2, 2]
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfdist.data.format.schema import TEXT, Schema
from tfdist.data.sources.protocol import Block

BLOCK_BYTES = 4 << 20
BLOCK_EXAMPLES = 1024  # where every example costs Python's time anyway
MOST_EXAMPLES = 1 << 16


def length(block: Block) -> int:
    """Return the number of examples in a block."""
    return len(next(iter(block.values())))


def cut(blocks: Iterator[Block], start: int, stop: int | None) -> Iterator[Block]:
    """Yield the examples from ``start`` to ``stop`` out of blocks that begin with example 0."""
    at = 0
    for block in blocks:
        size = length(block)
        first, last = max(start - at, 0), size if stop is None else min(stop - at, size)
        if first < last:
            yield block if (first, last) == (0, size) else {name: column[first:last] for name, column in block.items()}
        at += size
        if stop is not None and at >= stop:
            return


def bytes_per_example(schema: Schema) -> int:
    """Return the bytes that an example takes, without those of text and lists of any length."""
    return sum(
        (feature.size or 0) * np.dtype(feature.dtype).itemsize for feature in schema.values() if feature.dtype != TEXT
    )


def examples_per_block(each: int, most: int = MOST_EXAMPLES) -> int:
    """Return how many examples of ``each`` bytes a block has: `BLOCK_BYTES`, at least one example, ``most`` at most."""
    return max(1, min(most, BLOCK_BYTES // max(1, each)))


def weight(value: Any) -> int:
    """Return about how many bytes a value takes."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    try:
        return 8 + sum(map(weight, value)) if len(value) and hasattr(value[0], "__len__") else 8 * len(value)
    except (TypeError, KeyError):
        return 8
