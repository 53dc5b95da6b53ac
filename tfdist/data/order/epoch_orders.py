"""The example at each position of an epoch, as a pure function of seed, epoch and position.

A position is computed alone, in constant time and memory: no order keeps a list. Tests pin the results for ever;
another algorithm is another `VERSION`.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist.native.compiled_orders import CompiledOrders

VERSION = 1
TABLE = 4096
_AT_ONCE = 1 << 16  # positions
_MANY = 1 << 10  # number of values above which a sum for each permutation is faster than arrays of keys
_KEPT_BLOCKS = 4
_ONLY = np.zeros(1, np.int64)
_ONLY.flags.writeable = False
Ids = NDArray[np.int64]


class Order(Protocol):
    """The example at each position of an epoch."""

    @property
    def examples(self) -> int:
        """The number of examples; an epoch has as many positions."""

    @property
    def name(self) -> str:
        """A text that distinguishes this order from others, including the same order with other arguments."""

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        """Return the examples at these positions, each from 0 to ``examples - 1``, int64."""


class Permutation:
    """A pseudorandom permutation of 0 to ``size - 1`` for each key, computed for any position alone.

    A Feistel network over the next power of two, with eight rounds; a value outside goes through it again, which ends,
    because a permutation has only cycles. Networks over few values have too few permutations: up to `TABLE` values are
    sorted by random words instead, once per key.

    Source:
        M. Luby, C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988;
        J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking). The round function is
        MurmurHash3's finalizer (A. Appleby), which is fast and no cipher: the order is to look random, not secret.
    """

    def __init__(self, size: int, *key: int | str) -> None:
        self.size = size
        self._key = key
        bits = (size - 1).bit_length()
        self._right = bits // 2
        self._left = bits - self._right

    def __call__(self, positions: Any) -> Ids:
        (found,) = permuted([self], [np.asarray(positions)])
        return found

    @property
    def masks(self) -> tuple[int, int]:
        return (1 << self._left) - 1, (1 << self._right) - 1

    @property
    def keys(self) -> tuple[int, ...]:
        return round_keys(*self._key)

    @property
    def table(self) -> Ids | None:
        if self.size == 1:  # as of a class with one example, of which each turn has a permutation of its own
            return _ONLY
        return _table(self.size, *self._key) if self.size <= TABLE else None


def permuted(
    permutations: Sequence[Permutation], positions: Sequence[NDArray[Any]], compiled: CompiledOrders | None = None
) -> list[Ids]:
    """Return each permutation's values at its positions; in NumPy, networks of one width run together."""
    found: list[Any] = [None] * len(permutations)
    alike: dict[tuple[int, int], list[int]] = {}
    for number, (one, at) in enumerate(zip(permutations, positions, strict=True)):
        if (table := one.table) is not None:
            found[number] = table[at]
        elif compiled is not None:
            found[number] = compiled.permuted(one.keys, one.size, at)
        else:
            alike.setdefault(one.masks, []).append(number)
    for masks, numbers in alike.items():
        values = _walked([permutations[n] for n in numbers], masks, [positions[n] for n in numbers])
        for number, part in zip(numbers, values, strict=True):
            found[number] = part.view(np.int64)
    return found


def _walked(
    permutations: Sequence[Permutation], masks: tuple[int, int], positions: Sequence[NDArray[Any]]
) -> list[NDArray[np.uint64]]:
    """The values of networks of one width; each goes through its network until it is inside."""
    widths, shift = [np.uint32(mask) for mask in masks], np.uint64(masks[1].bit_length())
    keys_of = np.array([one.keys for one in permutations], np.uint32).T
    sizes = np.array([one.size for one in permutations], np.uint64)
    ends = np.cumsum([len(at) for at in positions])  # those of a permutation follow each other
    values = _network(np.concatenate(positions).astype(np.uint64), widths, shift, keys_of, ends)
    parts = np.split(values, ends[:-1])
    walking = np.flatnonzero(np.concatenate([part >= size for part, size in zip(parts, sizes, strict=True)]))
    again, which = values[walking], np.searchsorted(ends, walking, side="right")
    while len(again):
        if len(again) > _MANY:
            bounds = np.searchsorted(which, np.arange(len(permutations)), side="right")
            again = _network(again, widths, shift, keys_of, bounds)
        else:
            again = _network(again, widths, shift, keys_of.take(which, axis=1), None)
        values[walking] = again
        outside = np.flatnonzero(again >= sizes.take(which))
        again, which, walking = again[outside], which[outside], walking[outside]
    return parts


def _network(values: NDArray[np.uint64], masks: Any, shift: Any, keys: Any, ends: Ids | None) -> NDArray[np.uint64]:
    """A Feistel network; each round has a key for each value or, with ``ends``, for each part of them."""
    left = (values >> shift).astype(np.uint32)
    right = values.astype(np.uint32) & masks[1]
    for turn, key in enumerate(keys):
        # the halves change places, and with them their widths, which may differ by one bit
        mixture = _mixed(right + key if ends is None else _sums(right, key, ends))
        mixture &= masks[turn % 2]
        mixture ^= left
        left, right = right, mixture
    return left.astype(np.uint64) << shift | right


def _sums(values: NDArray[np.uint32], keys: NDArray[np.uint32], ends: Ids) -> NDArray[np.uint32]:
    """Values plus the key of the part that each is in."""
    found, begin = np.empty_like(values), 0
    for key, end in zip(keys, ends.tolist(), strict=True):
        np.add(values[begin:end], key, out=found[begin:end])
        begin = end
    return found


@lru_cache(maxsize=256)
def _table(size: int, *key: int | str) -> Ids:
    values = np.arange(size, dtype=np.uint32)
    keys = round_keys(*key)
    words = [mixed(mixed(values, keys[i]), keys[i + 1]).astype(np.uint64) for i in (0, 2)]
    table = np.argsort(words[0] << np.uint64(32) | words[1], kind="stable").astype(np.int64)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=4096)
def round_keys(*key: int | str) -> tuple[int, ...]:
    digest = hashlib.sha256(repr(("tfdist.data.order", VERSION, *key)).encode()).digest()
    return tuple(int(word) for word in np.frombuffer(digest, "<u4"))


def mixed(values: NDArray[np.uint32], key: Any) -> NDArray[np.uint32]:
    """32 well mixed bits for each value; the key is one number, or one for each."""
    return _mixed(values + (np.uint32(key) if isinstance(key, int) else key))


def _mixed(mixture: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mix the bits in place."""
    mixture ^= mixture >> np.uint32(16)
    mixture *= np.uint32(0x85EBCA6B)
    mixture ^= mixture >> np.uint32(13)
    mixture *= np.uint32(0xC2B2AE35)
    mixture ^= mixture >> np.uint32(16)
    return mixture


def seeds_of(ids: Ids, *, seed: int, epoch: int) -> NDArray[np.int32]:
    """Two words of randomness per example, int32 ``[n, 2]``: the ``seed`` of TensorFlow's stateless operations."""
    keys = round_keys("augment", seed, epoch)
    low, high = (np.asarray(ids).astype(np.uint64) >> np.uint64(32 * word) for word in (0, 1))
    words = [
        mixed(mixed(low.astype(np.uint32), first) ^ high.astype(np.uint32), second)
        for first, second in ((keys[0], keys[1]), (keys[2], keys[3]))
    ]
    return np.stack(words, axis=-1).view(np.int32)


@dataclass(frozen=True)
class Sequential:
    """The order in which the examples were written, in every epoch."""

    examples: int
    name: str = "none"

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        return np.asarray(positions, np.int64)


@dataclass(frozen=True)
class Full:
    """A permutation of all examples, another one in each epoch; `compiled` computes the same, and faster."""

    examples: int
    name: str = "full"
    compiled: CompiledOrders | None = field(default=None, kw_only=True, compare=False, repr=False)

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        (found,) = permuted([self.permutation(seed, epoch)], [np.asarray(positions)], self.compiled)
        return found

    def permutation(self, seed: int, epoch: int) -> Permutation:
        return Permutation(self.examples, "full", seed, epoch)


@dataclass(frozen=True)
class Block:
    """Blocks of neighbours in a random order, and the examples of a few consecutive blocks mixed.

    Reads are contiguous, as spinning disks and object stores need. Blocks begin elsewhere in each epoch, so that
    neighbours do not share a block for ever.
    """

    examples: int
    block: int
    window: int

    @property
    def name(self) -> str:
        return f"block:{self.block}x{self.window}"

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        positions = np.asarray(positions, np.int64)
        per_window = self.block * self.window
        whole = self.examples // self.block  # blocks; a shorter one at the end keeps its place
        window = positions // per_window
        mixed_positions = np.empty_like(positions)
        for number in np.unique(window):
            begin = int(number) * per_window
            here = window == number
            size = min(per_window, self.examples - begin)
            mixed_positions[here] = begin + Permutation(size, "window", seed, epoch, int(number))(
                positions[here] - begin
            )
        block, inside = mixed_positions // self.block, mixed_positions % self.block
        is_whole = block < whole
        block[is_whole] = Permutation(whole, "blocks", seed, epoch)(block[is_whole])
        shift = int(round_keys("shift", seed, epoch)[0] << 32 | round_keys("shift", seed, epoch)[1]) % self.examples
        return (block * self.block + inside + shift) % self.examples


class InBlocks:
    """An order whose examples are computed many at a time: a call takes as long for a few as for thousands."""

    def __init__(self, order: Order, seed: int) -> None:
        self._order, self._seed = order, seed
        self._block = lru_cache(maxsize=_KEPT_BLOCKS)(self._computed)
        self._lock = threading.Lock()  # two threads would compute the same block

    def ids(self, epoch: int, positions: Ids) -> Ids:
        numbers = positions // _AT_ONCE
        first, last = int(numbers.min()), int(numbers.max())
        if last - first < _KEPT_BLOCKS:
            with self._lock:
                parts = [self._block(epoch, number) for number in range(first, last + 1)]
            return (parts[0] if len(parts) == 1 else np.concatenate(parts))[positions - first * _AT_ONCE]
        return self._order.ids(seed=self._seed, epoch=epoch, positions=positions)

    def _computed(self, epoch: int, number: int) -> Ids:
        begin = number * _AT_ONCE
        positions = np.arange(begin, min(begin + _AT_ONCE, self._order.examples))
        return self._order.ids(seed=self._seed, epoch=epoch, positions=positions)
