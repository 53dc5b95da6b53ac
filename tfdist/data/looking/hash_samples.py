"""The number of values that differ, recur or are common to two sets: exact up to a limit, then estimates.

A value is represented by its hash of 128 bits. Up to `most` different values, all are kept, each with its count. After
that, only values whose hash begins with a zero bit are kept, then with two, and so on. The sample is drawn by value: a
value that comes again is always kept or always left out. So the sample also gives estimates of the numbers of repeated
and of shared values. The relative standard error of the number of different values is about 1.2 divided by the root of
`most`: P. Flajolet, "On adaptive sampling", Computing 43, 1990 (the algorithm is M. Wegman's).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ERROR = 1.2
_Keys = NDArray[np.uint64]  # [n, 2]: the halves of hashes, the first of which decides what is kept
_ROW = np.dtype(
    [
        ("high", "<u8"),
        ("low", "<u8"),
        ("count", "<i8"),
        ("first", "<i8"),  # numbers of the examples that have it
        ("last", "<i8"),
        ("label", "<u8"),  # of the first of these
        ("differs", "?"),  # another has another label
    ]
)


class HashSample:
    """The hashes of the different values, or of a sample of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._depth = 0  # leading bits of the first half that are 0
        self._rows = np.empty(0, _ROW)
        self._pending: list[NDArray[Any]] = []
        self._waiting = 0

    def add(self, keys: _Keys, numbers: NDArray[np.int64], labels: _Keys | None = None) -> None:
        """Add the value of each of these examples, and a hash of its label."""
        rows = np.zeros(len(keys), _ROW)
        rows["high"], rows["low"], rows["count"] = keys[:, 0], keys[:, 1], 1
        rows["first"] = rows["last"] = numbers
        if labels is not None:
            rows["label"] = labels[:, 0] ^ labels[:, 1]
        self._pending.append(rows[_inside(rows, self._depth)])
        self._waiting += len(self._pending[-1])
        if self._waiting > max(self._most // 4, 4096):
            self._settle()

    def _settle(self) -> None:
        self._rows = _grouped(np.concatenate([self._rows, *self._pending]))
        self._pending, self._waiting = [], 0
        while len(self._rows) > self._most:
            self._depth += 1
            self._rows = self._rows[_inside(self._rows, self._depth)]

    def kept(self, depth: int = 0) -> NDArray[Any]:
        """Return the kept values, sorted by their hashes."""
        if self._pending:
            self._settle()
        return self._rows[_inside(self._rows, depth)] if depth > self._depth else self._rows

    @property
    def depth(self) -> int:
        self.kept()
        return self._depth

    @property
    def different(self) -> "Estimate":
        """The number of different values, estimated from the number of kept ones."""
        kept, depth = len(self.kept()), self.depth
        return Estimate(kept << depth, _ERROR / max(1, min(kept, self._most)) ** 0.5 if depth else 0.0)


@dataclass(frozen=True)
class Estimate:
    """A number and its relative standard error, `error`, which is 0 if the number is exact."""

    number: int
    error: float


def shared(one: HashSample, other: HashSample) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Return the common values of two samples, as each has them, and their common depth."""
    depth = max(one.depth, other.depth)
    ours, theirs = one.kept(depth), other.kept(depth)
    both = np.concatenate([ours, theirs])[["high", "low"]]
    order = np.lexsort((both["low"], both["high"]))
    same = np.flatnonzero(both[order[:-1]] == both[order[1:]])  # sorting is stable, so ours come first
    return ours[order[same]], theirs[order[same + 1] - len(ours)], depth


def _inside(rows: NDArray[Any], depth: int) -> Any:
    return slice(None) if not depth else rows["high"] >> np.uint64(64 - depth) == 0


def _grouped(rows: NDArray[Any]) -> NDArray[Any]:
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows["first"], rows["low"], rows["high"]))]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
    begins = np.flatnonzero(is_new)
    found = rows[begins]
    found["count"] = np.add.reduceat(rows["count"], begins)
    found["last"] = np.maximum.reduceat(rows["last"], begins)
    unlike = rows["differs"] | (rows["label"] != np.repeat(found["label"], np.diff(np.append(begins, len(rows)))))
    found["differs"] = np.logical_or.reduceat(unlike, begins)
    return found


def hashes(values: Iterable[Any]) -> _Keys:
    """Return the hashes of bytes, or of other objects with a buffer."""
    digests = b"".join(hashlib.blake2b(value, digest_size=16).digest() for value in values)
    return np.frombuffer(digests, "<u8").reshape(-1, 2).astype(np.uint64)


def number_hashes(values: NDArray[Any]) -> _Keys:
    """Return the hashes of single numbers: different for different numbers, equal for equal ones of other dtypes."""
    words = bits_of(values).reshape(-1)
    mixture = words ^ (words >> np.uint64(30))  # the finalizer of SplitMix64, which is a permutation
    mixture = mixture * np.uint64(0xBF58476D1CE4E5B9)
    mixture ^= mixture >> np.uint64(27)
    mixture = mixture * np.uint64(0x94D049BB133111EB)
    mixture ^= mixture >> np.uint64(31)
    return np.stack([mixture, words], axis=1)


def bits_of(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return numbers as 64 bits each, the same for equal numbers: integers as int64, floats as float64."""
    if values.dtype.kind == "f":
        wide = values.astype(np.float64) + 0.0  # -0.0 is 0.0
        return np.where(np.isnan(wide), np.nan, wide).view(np.uint64)
    return values.astype(np.uint64 if values.dtype.kind == "u" else np.int64).view(np.uint64)
