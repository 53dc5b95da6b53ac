"""An order in which neighbours have similar lengths, each example once in an epoch."""

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tfdist.data.order.epoch_orders import Ids, Permutation

_BLOCKS = 64  # in a window


class Bucketed:
    """An order of blocks of examples with similar lengths.

    The permuted examples of a window are sorted by their lengths and cut into blocks, and the blocks are permuted. So a
    batch of a block's size has similar lengths, and batches of short and long examples are mixed. The last block of an
    epoch may be short; it stays at the end.
    """

    def __init__(self, lengths: NDArray[np.int64], block: int) -> None:
        self.examples = len(lengths)
        self.block = block
        self._lengths = lengths
        digest = hashlib.sha256(np.ascontiguousarray(lengths, "<i8").tobytes()).hexdigest()[:16]
        self.name = f"bucket:{block}x{_BLOCKS}:{digest}"
        self._window = lru_cache(maxsize=4)(self._laid_out)

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        positions = np.asarray(positions, np.int64)
        found, window = np.empty_like(positions), positions // (self.block * _BLOCKS)
        for number in np.unique(window).tolist():
            here = window == number
            found[here] = self._window(seed, epoch, number)[positions[here] - number * self.block * _BLOCKS]
        return found

    def _laid_out(self, seed: int, epoch: int, window: int) -> Ids:
        begin = window * self.block * _BLOCKS
        end = min(begin + self.block * _BLOCKS, self.examples)
        ids = Permutation(self.examples, "bucket", seed, epoch)(np.arange(begin, end))
        ids = ids[np.argsort(self._lengths[ids], kind="stable")]
        whole = len(ids) // self.block
        blocks = ids[: whole * self.block].reshape(whole, self.block)
        blocks = blocks[Permutation(whole, "blocks of buckets", seed, epoch, window)(np.arange(whole))]
        return np.concatenate([blocks.reshape(-1), ids[whole * self.block :]])


def block_of(name: object) -> int | None:
    """Return the block size of a bucketed order that a state names; None for other orders."""
    kind, _, rest = str(name).partition(":")
    size = rest.partition("x")[0]
    return int(size) if kind == "bucket" and size.isdigit() and int(size) > 0 else None
