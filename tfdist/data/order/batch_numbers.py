"""Compute the examples of many consecutive batches in one call."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfdist.cluster.shares import Share, Shares
from tfdist.data.order.batch_parts import Batches
from tfdist.data.order.epoch_orders import Ids, Order

WHOLE = Shares.equal(1).all


@dataclass(frozen=True)
class BatchChunk:
    """Consecutive batches, of each of which as many rows are read.

    Attributes:
        steps: number of each batch in the iteration, int64 ``[batches]``.
        rows: examples of the whole batch, int64 ``[batches]``.
        slices: examples, first row and end of each part, counted from the first row that is read, int32
            ``[batches, parts, 3]``.
        ids: the examples, int64 ``[batches, rows]``.
        weights: 1, and 0 for padding, float32 ``[batches, rows]``.
    """

    steps: NDArray[np.int64]
    rows: NDArray[np.int64]
    slices: NDArray[np.int32]
    ids: Ids
    weights: NDArray[np.float32]


class BatchChunks:
    """The batches of an epoch, some at a time; a pure function of epoch, start and number.

    Example:
        >>> from tfdist.data.order.epoch_orders import Sequential
        >>> chunks = BatchChunks(Sequential(10), 0, lambda start: Batches(10, 4, "keep", start), WHOLE, examples=8)
        >>> chunks.count(0), chunks(epoch=0, start=0, number=1).ids.tolist()
        (2, [[8, 9]])
    """

    def __init__(
        self, order: Order, seed: int, batches: Callable[[int], Batches], share: Share, *, examples: int
    ) -> None:
        self._order = order
        self._seed = seed
        self._batches = batches
        self._share = share
        self._width = self._rows(batches(0).global_batch_size)
        self._together = max(1, examples // self._width)

    def _rows(self, rows: int) -> int:
        first, end = self._share.rows(rows)
        return end - first

    def _alike(self, batches: Batches) -> int:
        """Return how many batches have as many rows as the first; the last one may have fewer, and is read alone."""
        if not batches.steps:
            return 0
        begin, end = batches.bounds(batches.steps - 1)
        return batches.steps - (self._rows(end - begin) != self._width)

    def count(self, start: int) -> int:
        """Return the number of chunks of what is left of an epoch."""
        batches = self._batches(start)
        alike = self._alike(batches)
        return -(-alike // self._together) + batches.steps - alike

    def __call__(self, *, epoch: int, start: int, number: int) -> BatchChunk:
        """Return a chunk, 0 for the first."""
        batches = self._batches(start)
        first, alike = number * self._together, self._alike(batches)
        steps = range(first, min(first + self._together, alike)) if first < alike else range(alike, batches.steps)
        bounds = [batches.bounds(step) for step in steps]
        spans = [self._share.rows(end - begin) for begin, end in bounds]
        begins = np.array([begin + first for (begin, _), (first, _) in zip(bounds, spans, strict=True)], np.int64)
        positions = begins[:, None] + np.arange(spans[0][1] - spans[0][0])
        ids = self._order.ids(seed=self._seed, epoch=epoch, positions=positions.reshape(-1) % self._order.examples)
        slices = [
            [(count, begin - first, end - first) for count, begin, end in self._share.slices(b - a)]
            for (a, b), (first, _) in zip(bounds, spans, strict=True)
        ]
        return BatchChunk(
            steps=np.array(steps, np.int64),
            rows=np.array([end - begin for begin, end in bounds], np.int64),
            slices=np.array(slices, np.int32),
            ids=ids.reshape(positions.shape),
            weights=(positions < self._order.examples).astype(np.float32),
        )
