"""Which examples stand in consecutive batches, for many batches at once: every call of Python has its price."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfdist.data.order import Ids, Order
from tfdist.data.sharding import Batches, part


@dataclass(frozen=True)
class Share:
    """Whose part of every global batch is read: ``count`` of ``parts`` equal parts, from ``first`` on."""

    first: int
    count: int
    parts: int

    def pieces(self, rows: int) -> list[tuple[int, int, int]]:
        """Return for each part its number of examples and the rows to take: one, of a neighbour, where it has none."""
        found = []
        for index in range(self.first, self.first + self.count):
            begin, end = part(rows, index, self.parts)
            first = min(begin, max(rows - 1, 0))
            found.append((end - begin, first, max(end, first + 1)))
        return found

    def rows(self, rows: int) -> tuple[int, int]:
        """Return the first row of a batch that is read, and the one behind the last."""
        pieces = self.pieces(rows)
        return min(first for _, first, _ in pieces), max(end for _, _, end in pieces)


WHOLE = Share(0, 1, 1)


@dataclass(frozen=True)
class Stretch:
    """Consecutive batches; what is read of each has ``counts`` rows, and rows beyond that repeat the last.

    Attributes:
        steps: number of each batch in the iteration, int64 ``[batches]``.
        rows: examples of the whole batch, int64 ``[batches]``.
        counts: rows that are read, int64 ``[batches]``.
        pieces: examples, first row and end of each part, counted from the first row that is read, int32
            ``[batches, parts, 3]``.
        ids: the examples, int64 ``[batches, rows]``.
        weights: 1, and 0 for padding, float32 ``[batches, rows]``.
    """

    steps: NDArray[np.int64]
    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    pieces: NDArray[np.int32]
    ids: Ids
    weights: NDArray[np.float32]


class Stretches:
    """The batches of an epoch, some at a time; a pure function of epoch, start and number.

    Args:
        order: which example stands where.
        seed: of the order.
        batches: start -> the batches of an epoch of which so many examples have been consumed.
        share: whose part of each batch.
        examples: about how many examples a stretch is to have.

    Example:
        >>> from tfdist.data.order import Sequential
        >>> stretches = Stretches(Sequential(10), 0, lambda start: Batches(10, 4, "keep", start), WHOLE, examples=8)
        >>> stretches.count(0), stretches(epoch=0, start=0, number=1).ids.tolist()
        (2, [[8, 9]])
    """

    def __init__(
        self, order: Order, seed: int, batches: Callable[[int], Batches], share: Share, *, examples: int
    ) -> None:
        self._order = order
        self._seed = seed
        self._batches = batches
        self._share = share
        first, end = share.rows(batches(0).global_batch_size)
        self._together = max(1, examples // (end - first))

    def count(self, start: int) -> int:
        """Return the number of stretches of what is left of an epoch."""
        return -(-self._batches(start).steps // self._together)

    def __call__(self, *, epoch: int, start: int, number: int) -> Stretch:
        """Return a stretch, 0 for the first."""
        batches = self._batches(start)
        steps = range(number * self._together, min((number + 1) * self._together, batches.steps))
        bounds = [batches.bounds(step) for step in steps]
        spans = [self._share.rows(end - begin) for begin, end in bounds]
        counts = np.array([end - first for first, end in spans], np.int64)
        begins = np.array([begin + first for (begin, _), (first, _) in zip(bounds, spans, strict=True)], np.int64)
        inside = np.minimum(np.arange(counts.max()), counts[:, None] - 1)
        positions = begins[:, None] + inside
        ids = self._order.ids(seed=self._seed, epoch=epoch, positions=positions.reshape(-1) % self._order.examples)
        pieces = [
            [(count, begin - first, end - first) for count, begin, end in self._share.pieces(b - a)]
            for (a, b), (first, _) in zip(bounds, spans, strict=True)
        ]
        return Stretch(
            steps=np.array(steps, np.int64),
            rows=np.array([end - begin for begin, end in bounds], np.int64),
            counts=counts,
            pieces=np.array(pieces, np.int32),
            ids=ids.reshape(positions.shape),
            weights=(positions < self._order.examples).astype(np.float32),
        )
