"""Which example stands at which position of an epoch: a pure function of seed, epoch and position.

No order keeps a list of all examples: a position is computed alone, in constant time and memory. What this file
computes is pinned for ever by tests; another algorithm would be another `VERSION`.

Example:
    >>> order = Full(examples=5)
    >>> order.ids(seed=1, epoch=0, positions=np.arange(5)).tolist()
    [3, 4, 2, 1, 0]
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError

VERSION = 1
TABLE = 4096
Ids = NDArray[np.int64]


class Order(Protocol):
    """Which example stands at which position.

    Attributes:
        examples: how many there are; an epoch has as many positions.
        is_permutation: whether an epoch has each exactly once.
        name: what tells it from other orders, also of other arguments.
    """

    @property
    def examples(self) -> int:
        """Positions in an epoch."""

    @property
    def is_permutation(self) -> bool:
        """Whether an epoch has each exactly once."""

    @property
    def name(self) -> str:
        """What tells it from others."""

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        """Return the examples at these positions, each from 0 to ``examples - 1``, int64."""


class Permutation:
    """A pseudorandom permutation of 0 to ``size - 1``, one for each key, computed for any position alone.

    A Feistel network over the next power of two, with eight rounds; what falls outside goes through it again, which
    ends, because a permutation has only cycles. Networks over few values know too few permutations: up to `TABLE`
    values are sorted by random words instead, once per key.

    Args:
        size: number of values, at least 1.
        key: integers and text that choose it.

    Source:
        M. Luby, C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988;
        J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking). The round function is
        the finaliser of MurmurHash3 (A. Appleby), which is fast and no cipher: the order is to look random, not to be
        secret.

    Example:
        >>> sorted(Permutation(7, "a", 3)(np.arange(7)).tolist())
        [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(self, size: int, *key: int | str) -> None:
        self.size = size
        self._key = key
        bits = max(2, (size - 1).bit_length())
        self._right = bits // 2
        self._left = bits - self._right

    def __call__(self, positions: Any) -> Ids:
        """Return the values at these positions, int64."""
        if self.size <= TABLE:
            return _table(self.size, *self._key)[positions]
        values = self._network(np.asarray(positions).astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            again = self._network(values[outside])
            values[outside] = again
            outside = outside[again >= self.size]
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        widths = (self._left, self._right)
        left = (values >> np.uint64(self._right)).astype(np.uint32)
        right = (values & np.uint64((1 << self._right) - 1)).astype(np.uint32)
        for turn, key in enumerate(round_keys(*self._key)):
            # the halves change places, and with them their widths, which may differ by one bit
            mask = np.uint32((1 << widths[turn % 2]) - 1)
            left, right = right, left ^ (mixed(right, key) & mask)
        return left.astype(np.uint64) << np.uint64(self._right) | right


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
    """Return eight 32-bit keys from integers and text."""
    digest = hashlib.sha256(repr(("tfdist.data.order", VERSION, *key)).encode()).digest()
    return tuple(int(word) for word in np.frombuffer(digest, "<u4"))


def mixed(values: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return 32 well mixed bits for each value, uint32."""
    mixture = values + np.uint32(key)
    mixture ^= mixture >> np.uint32(16)
    mixture *= np.uint32(0x85EBCA6B)
    mixture ^= mixture >> np.uint32(13)
    mixture *= np.uint32(0xC2B2AE35)
    mixture ^= mixture >> np.uint32(16)
    return mixture


def seeds_of(ids: Ids, *, seed: int, epoch: int) -> NDArray[np.int32]:
    """Return two words of randomness per example, int32 ``[n, 2]``: the same whoever computes them.

    They are what TensorFlow's stateless operations take as ``seed``.
    """
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
    is_permutation: bool = True
    name: str = "none"

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        """Return the positions."""
        return np.asarray(positions, np.int64)


@dataclass(frozen=True)
class Full:
    """A permutation of all examples, another one in each epoch."""

    examples: int
    is_permutation: bool = True
    name: str = "full"

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        """Return the examples at these positions."""
        return Permutation(self.examples, "full", seed, epoch)(positions)


@dataclass(frozen=True)
class Block:
    """Blocks of neighbours in a random order, and the examples of a few consecutive blocks mixed.

    What is read is contiguous, which disks that spin and object stores need. The blocks begin somewhere else in each
    epoch, so that neighbours do not stay in one block for ever.

    Args:
        examples: how many there are.
        block: examples in a block.
        window: number of blocks that are mixed.
    """

    examples: int
    block: int
    window: int
    is_permutation: bool = True

    @property
    def name(self) -> str:
        """The order with its sizes."""
        return f"block:{self.block}x{self.window}"

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        """Return the examples at these positions."""
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
        if whole:
            block[is_whole] = Permutation(whole, "blocks", seed, epoch)(block[is_whole])
        shift = int(round_keys("shift", seed, epoch)[0] << 32 | round_keys("shift", seed, epoch)[1]) % self.examples
        return (block * self.block + inside + shift) % self.examples


class Weighted:
    """Classes in given proportions, each class's examples in turn, in a new order each time they have all been seen.

    An epoch has as many positions as there are examples; an example of a rare class stands in it several times. Within
    each cycle of ``slots`` positions the proportions hold exactly (to one slot).

    Args:
        labels: integers, ``[examples]``.
        weights: label -> proportion, above 0 for at least one; labels that are not named are left out. None: all
            labels alike.
        slots: positions of a cycle, where weights are given.

    Raises:
        ConfigError: a label has a weight but no example, or no weight is above 0.
    """

    is_permutation = False

    def __init__(self, labels: Any, weights: dict[int, float] | None = None, *, slots: int = 1000) -> None:
        labels = np.asarray(labels).reshape(-1)
        self.examples = len(labels)
        present, inverse = np.unique(labels, return_inverse=True)
        shares = _shares([int(label) for label in present], weights, slots)
        by_class = np.argsort(inverse, kind="stable").astype(np.int64)
        ends = np.cumsum(np.bincount(inverse, minlength=len(present)))
        kept = [(index, count) for index, count in enumerate(shares) if count]
        self._members = [by_class[ends[index - 1] if index else 0 : ends[index]] for index, _ in kept]
        self._counts = np.array([count for _, count in kept], np.int64)
        self._begins = np.concatenate([[0], np.cumsum(self._counts)])
        digest = hashlib.sha256(np.ascontiguousarray(inverse, "<i8").tobytes()).hexdigest()[:8]
        self.name = f"weighted:{digest}:" + ",".join(f"{present[index]}x{count}" for index, count in kept)
        if len(self.name) > 80:
            self.name = f"weighted:{digest}:{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        """Return the examples at these positions."""
        slots = int(self._begins[-1])
        # positions run on from epoch to epoch, so that a class's next examples come, not its first ones again
        positions = np.asarray(positions, np.int64) + epoch * self.examples
        cycle = positions // slots
        slot = np.empty_like(positions)
        for number in np.unique(cycle):
            here = cycle == number
            slot[here] = Permutation(slots, "slots", seed, int(number))(positions[here] - number * slots)
        kind = np.searchsorted(self._begins, slot, side="right") - 1
        turn = cycle * self._counts[kind] + slot - self._begins[kind]
        found = np.empty_like(positions)
        for which in np.unique(kind):
            members, here = self._members[which], kind == which
            lap, place = turn[here] // len(members), turn[here] % len(members)
            inside = np.empty_like(place)
            for number in np.unique(lap):
                now = lap == number
                inside[now] = Permutation(len(members), "class", seed, int(which), int(number))(place[now])
            found[here] = members[inside]
        return found


def _shares(labels: list[int], weights: dict[int, float] | None, slots: int) -> list[int]:
    """Return how many of a cycle's positions each label gets: largest remainders, at least one for a weight above 0."""
    if weights is None:
        return [1] * len(labels)
    given = {int(label): validation.number(f"weight of {label}", w, minimum=0.0) for label, w in weights.items()}
    strangers = sorted(label for label, weight in given.items() if weight and label not in labels)
    if strangers:
        raise ConfigError(f"weights name the labels {strangers}, of which there is no example; there are {labels}.")
    total = sum(given.values())
    if not total:
        raise ConfigError(f"weights are {weights}; at least one must be above 0.")
    exact = [given.get(label, 0.0) / total * slots for label in labels]
    shares = [max(int(value), 1 if value else 0) for value in exact]
    for index in sorted(range(len(labels)), key=lambda i: int(exact[i]) - exact[i])[: max(0, slots - sum(shares))]:
        shares[index] += 1
    return shares
