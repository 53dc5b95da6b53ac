"""Orders in which classes have shares: all the same, or weights of the user.

Both number the turns of a class over all epochs, so that all its examples come before one comes again, whatever the
length of an epoch. Tests pin `Balanced` and what it computes, as they do the orders of `epoch_orders.py`.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.order.class_lists import ClassLists, class_lists
from tfdist.data.order.epoch_orders import TABLE, Ids, Permutation, mixed, round_keys
from tfdist.errors import ConfigError

_Floats = NDArray[np.float64]
#: the levels of a tree of classes, the root first: each node's smaller share, and whether its left child has it
Levels = list[tuple[_Floats, NDArray[np.bool_]]]
_LISTED = 10


class Balanced:
    """All classes alike: each cycle of as many positions as there are classes has every class once.

    An epoch has as many positions as there are examples, so an example of a rare class occurs several times.
    """

    def __init__(self, labels: Any) -> None:
        self._classes = _Classes(labels)
        self.examples = self._classes.examples
        names = ",".join(f"{label}x1" for label in self._classes.labels)
        self.name = f"weighted:{self._classes.digest}:{names}"
        if len(self.name) > 80:
            self.name = f"weighted:{self._classes.digest}:{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def frequencies(self) -> _Floats:
        """Return the frequency of each example in the long run; all add up to 1."""
        return self._classes.frequencies(np.ones(len(self._classes.labels)))

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        count = len(self._classes.labels)
        # positions run on from epoch to epoch, so that a class's next examples come, not its first ones again
        positions = np.asarray(positions, np.int64) + epoch * self.examples
        cycle = positions // count
        kind = np.empty_like(positions)
        for number, here in places_of(cycle):
            kind[here] = Permutation(count, "slots", seed, int(number))(positions[here] - number * count)
        return self._classes.taken(seed, kind, cycle)


class Weighted:
    """Classes in given proportions, in every range of positions.

    A class occurs as often as its weight says, to within a few examples, whatever the number of classes and the length
    of an epoch. A class whose share of an epoch is below one example is in some epochs.

    An epoch is cut into windows. How often a class came before a window follows from the window's position: a tree of
    classes halves the set of them, and each node gives its left child a fixed share of its turns, rounded. In a window,
    classes have a random order in which each is spread evenly.
    """

    def __init__(self, labels: Any, weights: Mapping[Any, float], names: Sequence[str] = ()) -> None:
        self._classes = _Classes(labels)
        self.examples = self._classes.examples
        shares = _shares(self._classes.labels, weights, names)
        self._shares = shares
        self._levels = levels_of(shares)
        self._windows = -(-self.examples // max(TABLE, len(shares)))
        digest = hashlib.sha256(shares.astype("<f8").tobytes()).hexdigest()[:16]
        self.name = f"shares:{self._classes.digest}:{digest}"
        self._window = lru_cache(maxsize=4)(self._laid_out)

    def frequencies(self) -> _Floats:
        """Return the frequency of each example in the long run; all add up to 1."""
        return self._classes.frequencies(self._shares)

    def ids(self, *, seed: int, epoch: int, positions: Ids) -> Ids:
        positions = np.asarray(positions, np.int64)
        kind, turn = np.empty_like(positions), np.empty_like(positions)
        window = ((positions + 1) * self._windows - 1) // self.examples  # the inverse of `_begin`
        for number, here in places_of(window):
            begin = self._begin(int(number))
            kinds, turns = self._window(seed, epoch, int(number))
            kind[here], turn[here] = kinds[positions[here] - begin], turns[positions[here] - begin]
        return self._classes.taken(seed, kind, turn)

    def _begin(self, window: int) -> int:
        return self.examples * window // self._windows

    def _laid_out(self, seed: int, epoch: int, window: int) -> tuple[Ids, Ids]:
        begin, end = self._begin(window), self._begin(window + 1)
        before, after = (self._met(seed, epoch * self.examples + at) for at in (begin, end))
        return laid_out(before, after, spread(end - begin, "spread", seed, epoch, window))

    def _met(self, seed: int, positions: int) -> Ids:
        return met_of(self._levels, positions, "phase", seed)[: len(self._classes.labels)]


class _Classes:
    def __init__(self, labels: Any) -> None:
        lists = labels if isinstance(labels, ClassLists) else class_lists([np.asarray(labels).reshape(-1)])
        self.examples = lists.examples
        self.labels = list(lists.classes)
        self.digest = lists.digest
        self._members = lists.members()

    def frequencies(self, shares: _Floats) -> _Floats:
        """Return the frequency of each example, if the classes have these shares of all positions."""
        found = np.zeros(self.examples)
        for share, members in zip((shares / shares.sum()).tolist(), self._members, strict=True):
            found[members] += share / len(members)
        return found

    def taken(self, seed: int, kind: Ids, turn: Ids) -> Ids:
        """The example that each class has at its turn: all of them in a random order, then in another one."""
        found = np.empty_like(turn)
        for which, here in places_of(kind):
            members = self._members[which]
            lap, place = turn[here] // len(members), turn[here] % len(members)
            inside = np.empty_like(place)
            for number, now in places_of(lap):
                inside[now] = Permutation(len(members), "class", seed, int(which), int(number))(place[now])
            found[here] = members[inside]
        return found


def places_of(values: NDArray[Any]) -> Iterator[tuple[Any, NDArray[np.intp]]]:
    """Yield each value that occurs, in order, and its places; a search for each would take the square of the time.

    NaN is one value, although it is equal to none.
    """
    order = np.argsort(values, kind="stable")
    found, begins = np.unique(values[order], return_index=True)
    bounds = itertools.pairwise([*begins.tolist(), len(order)])
    yield from zip(found, (order[begin:end] for begin, end in bounds), strict=True)


def met_of(levels: Levels, positions: int | Ids, *key: int | str) -> Ids:
    """Return the number of times that each class occurs in the first positions, int64 ``[..., classes]``.

    The smaller child of a node gets its share of the node's turns rounded, the larger one the rest. So both only grow
    with the positions, as long as these have fewer than 51 bits. The result may have zeros behind the classes.
    """
    met = np.asarray(positions, np.int64)[..., None]
    for level, (share, is_left) in enumerate(levels):
        small = np.floor(met * share + _phases(len(share), *key, level)).astype(np.int64)
        large = met - small
        met = np.stack([np.where(is_left, small, large), np.where(is_left, large, small)], axis=-1)
        met = met.reshape(*met.shape[:-2], -1)
    return met


@lru_cache(maxsize=256)
def _phases(nodes: int, *key: int | str) -> _Floats:
    """For each node of a level, a number from 0 to 1 that is added before its turns are rounded."""
    keys = round_keys(*key)
    found = mixed(mixed(np.arange(nodes, dtype=np.uint32), keys[0]), keys[1]) / 2.0**32
    found.flags.writeable = False
    return np.asarray(found)


def laid_out(before: Ids, after: Ids, spread: Ids) -> tuple[Ids, Ids]:
    """The class at each position of a window, and the number of its turn, from how often each came before and after.

    ``spread`` is an even order of the values below the size of the window.
    """
    counts, kinds = after - before, kinds_of(before, after, spread)
    turns = np.empty(len(kinds), np.int64)
    in_turn = np.arange(len(kinds)) + np.repeat(before + counts - np.cumsum(counts), counts)
    turns[np.argsort(kinds, kind="stable")] = in_turn  # of small integers by counting them
    return kinds, turns


def kinds_of(before: Ids, after: Ids, spread: Ids) -> NDArray[Any]:
    """The classes of `laid_out` alone."""
    counts = after - before
    return np.repeat(np.arange(len(counts), dtype=np.min_scalar_type(len(counts))), counts).take(spread)


def spread(size: int, *key: int | str) -> Ids:
    """A random order of the values below ``size`` in which each range of them is spread evenly.

    It is van der Corput's sequence with digits flipped at random, by the digits before and the place (after A. B. Owen,
    "Randomly permuted (t,m,s)-nets and (t,s)-sequences", 1995). Of 2^k neighbours each has another 2^k-th part of the
    values, and no range repeats the one before.
    """
    bits = (size - 1).bit_length()
    places, found = np.arange(1 << bits, dtype=np.uint32), np.zeros(1 << bits, np.uint32)
    for bit in range(bits):
        of_place, of_digits = round_keys(*key, bit)[:2]
        flips = mixed(mixed(places >> np.uint32(bit + 1), of_place) ^ found, of_digits)
        found = found << np.uint32(1) | (flips ^ places >> np.uint32(bit)) & np.uint32(1)
    return found[found < size].astype(np.int64)


def levels_of(shares: _Floats) -> Levels:
    """For each level, from the root on: the smaller share of each node, and whether its left child has it."""
    nodes = np.zeros(1 << (len(shares) - 1).bit_length())
    nodes[: len(shares)] = shares
    levels: Levels = []
    while len(nodes) > 1:
        pairs = nodes.reshape(-1, 2)
        nodes = pairs.sum(axis=1)
        share = np.divide(pairs.min(axis=1), nodes, out=np.zeros_like(nodes), where=nodes > 0)
        levels.insert(0, (share, pairs[:, 0] < pairs[:, 1]))
    return levels


def _class_of(given: Any, labels: list[Any], names: Sequence[str]) -> Any:
    """The class that a key of a user means: itself, its name, or the text of a number."""
    if isinstance(given, tuple):
        columns = list(zip(*labels, strict=True)) if isinstance(labels[0], tuple) else []
        of_columns = zip(given, columns, strict=True) if len(given) == len(columns) else ()
        return tuple(_class_of(one, list(column), ()) for one, column in of_columns) or given
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        if given in names:
            return names.index(given)
        if not any(isinstance(label, int) for label in labels):
            return given.encode()
        given = int(given) if given.lstrip("-").isdecimal() else given
    hint = f"Or its name: {', '.join(names[:_LISTED])}." if names else ""
    is_bool = isinstance(given, (bool, np.bool_))
    return int(given) if is_bool else validation.integer("a label of order", given, hint=hint)


def _shares(labels: list[Any], weights: Mapping[Any, float], names: Sequence[str]) -> _Floats:
    given = {
        _class_of(label, labels, names): validation.number(f"weight of {label}", w, minimum=0.0)
        for label, w in weights.items()
    }
    strangers = {label for label, weight in given.items() if weight} - set(labels)
    if strangers:
        listed = sorted(strangers, key=lambda one: (isinstance(one, int), one if isinstance(one, int) else str(one)))
        there = ", ".join(map(str, labels[:_LISTED])) + (", ..." if len(labels) > _LISTED else "")
        raise ConfigError(
            f"weights name the labels {validation.shown(listed)}, of which there is no example; there are "
            f"{len(labels)} labels: {there}.",
            name="weights",
            received=validation.shown(listed),
        )
    largest = max(given.values(), default=0.0)
    if not largest:
        raise ConfigError(
            f"weights are {validation.shown(dict(weights))}; at least one must be above 0.",
            name="weights",
            received=validation.shown(dict(weights)),
        )
    return np.array([given.get(label, 0.0) for label in labels]) / largest
