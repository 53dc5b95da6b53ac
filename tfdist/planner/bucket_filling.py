"""The division of a step's tensors into buckets, which travel as one message each. Loads no TensorFlow."""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

#: the most of the first bucket, so that the network is busy as soon as the first gradients are there
FIRST_BYTES = 1 << 20
#: the most of the others, unless something else is asked for
BUCKET_BYTES = 4 << 20


def filled(tensors: Mapping[int, tuple[Hashable, float]], bucket_bytes: float) -> list[list[int]]:
    """Return buckets of indices, each of one kind, in the order of the mapping; a larger tensor has its own.

    A tensor has a kind, such as its dtype, and a size in bytes. The first bucket has at most `FIRST_BYTES`.

    Example:
        >>> filled({3: ("float", 16), 2: ("float", 8), 1: ("int", 4), 0: ("float", 8)}, 16)
        [[3], [2, 0], [1]]
    """
    buckets: list[list[int]] = []
    filling: dict[Hashable, tuple[list[int], float]] = {}
    for index, (kind, size) in tensors.items():
        bucket, held = filling.get(kind, ([], 0.0))
        limit = min(FIRST_BYTES, bucket_bytes) if buckets and bucket is buckets[0] else bucket_bytes
        if not bucket or held + size > limit:
            bucket, held = [], 0.0
            buckets.append(bucket)
        bucket.append(index)
        filling[kind] = (bucket, held + size)
    return buckets


def filled_bytes(sizes: Mapping[int, float], bucket_bytes: float) -> list[tuple[int, float]]:
    """Return the last index and the bytes of each bucket of tensors of one kind; those of no bytes are left out.

    Example:
        >>> filled_bytes({2: 16, 1: 0, 0: 8}, 16)
        [(2, 16.0), (0, 8.0)]
    """
    buckets = filled({index: (None, size) for index, size in sizes.items() if size}, bucket_bytes)
    return [(bucket[-1], math.fsum(sizes[index] for index in bucket)) for bucket in buckets]


class RoomUnderWay:
    """A limit on the bytes under way in a step: two buckets, or two of the largest tensor that travels by itself.

    One bucket travels while the next is made. Small tensors between them do not count.
    """

    def __init__(self, bucket_bytes: float, sizes: Iterable[float]) -> None:
        largest = max([bucket_bytes, *sizes])
        self._most = 2 * largest + largest / 4
        self._gone: list[tuple[float, Any]] = []
        self._next = 0.0

    def before(self, size: float) -> list[Any]:
        """Return what must have arrived before this many bytes are made: none, or one that was given to `left_by`."""
        held = self._next = size
        for other, arrived in reversed(self._gone):
            held += other
            if held > self._most:
                return [arrived]
        return []

    def left_by(self, arrived: Any) -> None:
        """Note the result of the bytes that `before` was asked about last."""
        self._gone.append((self._next, arrived))
