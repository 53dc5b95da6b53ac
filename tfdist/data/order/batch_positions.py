"""The position in an epoch, the global batches after it, and each worker's part of them, the same on all workers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.cluster.shares import Share, Shares
from tfdist.data.order.epoch_orders import Ids, InBlocks, Order
from tfdist.errors import ConfigError

TAILS = ("pad", "drop", "keep")
STATE_VERSION = 1
WHOLE = Shares.equal(1).all


@dataclass(frozen=True)
class Batches:
    """The global batches of an epoch, from a position on."""

    examples: int
    global_batch_size: int
    tail: str = "pad"
    start: int = 0

    @property
    def steps(self) -> int:
        """The number of batches that are left."""
        left = self.examples - self.start
        return left // self.global_batch_size if self.tail == "drop" else -(-left // self.global_batch_size)

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first position of a batch, and its end; positions beyond the epoch are padding."""
        begin = self.start + step * self.global_batch_size
        end = begin + self.global_batch_size
        return begin, end if self.tail == "pad" else min(end, self.examples)

    def consumed(self, steps: int) -> int:
        return min(self.start + steps * self.global_batch_size, self.examples)


@dataclass(frozen=True)
class BatchChunk:
    """Consecutive batches with the same number of rows to read.

    `steps` and `rows` are int64 ``[batches]``; `ids` int64 and `weights` float32 (0 for padding) are ``[batches,
    rows]``; `slices` is int32 ``[batches, parts, 3]``: examples, first row and end of each part, from the first row
    that is read.
    """

    steps: NDArray[np.int64]
    rows: NDArray[np.int64]
    slices: NDArray[np.int32]
    ids: Ids
    weights: NDArray[np.float32]


class BatchChunks:
    """The batches of an epoch in chunks, a pure function of epoch, start and number."""

    def __init__(
        self, order: Order, seed: int, batches: Callable[[int], Batches], share: Share, *, examples: int
    ) -> None:
        self._order = order
        self._ids = InBlocks(order, seed).ids
        self._batches = batches
        self._share = share
        self._width = self._rows(batches(0).global_batch_size)
        self._together = max(1, examples // self._width)

    def _rows(self, rows: int) -> int:
        first, end = self._share.rows(rows)
        return end - first

    def _alike(self, batches: Batches) -> int:
        """Return the number of batches with as many rows as the first; a shorter last one is read alone."""
        if not batches.steps:
            return 0
        begin, end = batches.bounds(batches.steps - 1)
        return batches.steps - (self._rows(end - begin) != self._width)

    def count(self, start: int) -> int:
        batches = self._batches(start)
        alike = self._alike(batches)
        return -(-alike // self._together) + batches.steps - alike

    def __call__(self, *, epoch: int, start: int, number: int) -> BatchChunk:
        batches = self._batches(start)
        first, alike = number * self._together, self._alike(batches)
        steps = range(first, min(first + self._together, alike)) if first < alike else range(alike, batches.steps)
        bounds = [batches.bounds(step) for step in steps]
        spans = [self._share.rows(end - begin) for begin, end in bounds]
        begins = np.array([begin + first for (begin, _), (first, _) in zip(bounds, spans, strict=True)], np.int64)
        positions = begins[:, None] + np.arange(spans[0][1] - spans[0][0])
        ids = self._ids(epoch, positions.reshape(-1) % self._order.examples)
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


@dataclass
class Position:
    """The epoch that is read, and the number of its examples that were consumed before its reading began (`start`).

    `batches` is the number handed out since then, if they are counted. `is_last`: the last batch of the epoch was
    handed out. `is_uncounted`: an iteration has begun whose batches are not counted.
    """

    epoch: int = 0
    start: int = 0
    batches: int = 0
    is_last: bool = False
    is_uncounted: bool = False

    def lead_to(self, other: "Position") -> None:
        """Move to another position, at the beginning of an iteration."""
        self.epoch, self.start, self.batches, self.is_last = other.epoch, other.start, 0, False
        self.is_uncounted = False

    def begin(self, *, counted: bool) -> None:
        """Begin an iteration: over the next epoch if this one was read to its end, else over the rest of this one."""
        if self.is_last:
            self.epoch, self.start = self.epoch + 1, 0
        self.batches, self.is_last, self.is_uncounted = 0, False, not counted


@dataclass(frozen=True)
class Identity:
    """The properties that a position depends on: data, order, seed, and positions of an epoch."""

    digest: str
    order: str
    seed: int
    examples: int

    def state(self, *, epoch: int, consumed: int) -> dict[str, Any]:
        """Return a position as JSON of less than 1 KB."""
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "consumed": consumed,
            "examples": self.examples,
            "seed": self.seed,
            "order": self.order,
            "digest": self.digest,
        }

    def position(self, state: Any) -> Position:
        fields = {"version", "epoch", "consumed", "examples", "seed", "order", "digest"}
        if not isinstance(state, dict) or set(state) != fields:
            listed = ", ".join(sorted(fields))
            raise validation.mismatch("state", state, f"the result of `state()` of a tfdist dataset, with {listed}.")
        if state["version"] != STATE_VERSION:
            raise ConfigError(
                f"state has version {state['version']!r}; this tfdist reads version {STATE_VERSION}.",
                name="state",
                received=state["version"],
            )
        ours = self.state(epoch=0, consumed=0)
        for name, what in (
            ("digest", "the data were written anew or repaired since"),
            ("examples", "an epoch has another number of examples"),
            ("order", "the order is another, or one of an earlier tfdist"),
            ("seed", "the seed is another"),
        ):
            if state[name] != ours[name]:
                raise ConfigError(
                    f"state has {name} {validation.shown(state[name])}, the dataset {validation.shown(ours[name])}: "
                    f"{what}, so the position would mean other examples. Read with what the state was saved with, or "
                    "begin without a state.",
                    name=name,
                    received=validation.shown(state[name]),
                )
        epoch = validation.integer("epoch of the state", state["epoch"], minimum=0)
        consumed = validation.integer("consumed of the state", state["consumed"], minimum=0, maximum=self.examples)
        return Position(epoch + 1, 0) if consumed >= self.examples else Position(epoch, consumed)
