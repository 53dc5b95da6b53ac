"""Statistics of one feature, gathered batch by batch. No TensorFlow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.feature_values import has_classes
from tfdist.data.format.schema import TEXT, Feature
from tfdist.data.looking.hash_samples import HashSample, bits_of, hashes, number_hashes
from tfdist.data.looking.moments import Moments, merged, moments_of
from tfdist.data.order.class_lists import entries_of

MOST_DISTINCT = 1 << 16  # different values of a feature that are counted exactly
MOST_LABELS = 10_000  # more are no classes
_MOST_SAMPLED = 16  # values of an example, for a histogram

Column = Any  # an array with a row for each example, or a list of arrays or of bytes


@dataclass(frozen=True)
class FeatureStats:
    """The statistics of a feature over all examples.

    Attributes:
        dtype: the dtype; "string" for texts and bytes.
        shape: the shape of the feature in one example; None for any length.
        count: the number of examples with a value, which is neither null nor empty.
        null: the number of examples for which NAME_is_null is true; their values do not count.
        empty: the number of examples with a text or list of length 0.
        values: the number of numbers or texts in all examples.
        nan: the number of NaN values.
        infinite: the number of infinite values.
        min: the smallest finite number.
        max: the largest finite number.
        mean: the mean of the finite numbers.
        deviation: the population standard deviation of the finite numbers.
        lengths: the minimum, maximum and mean length: of lists in values, of texts and pictures in bytes.
        distinct: the number of different values; an array is one value.
        distinct_error: the relative standard error of ``distinct``; 0 if it was counted exactly.
    """

    dtype: str
    shape: tuple[int | None, ...]
    count: int
    null: int
    empty: int
    values: int
    nan: int
    infinite: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    deviation: float | None
    lengths: tuple[int, int, float] | None
    distinct: int
    distinct_error: float


class FeatureTally:
    """A gatherer of the statistics of one feature."""

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self.moments = Moments()
        self._lengths = Moments()
        self._distinct = HashSample(MOST_DISTINCT)
        self._count = self._null = self._values = 0
        self.sampled: list[NDArray[np.float64]] = []

    def add(self, column: Column, numbers: NDArray[np.int64], is_null: NDArray[np.bool_] | None) -> Moments:
        """Add a feature of these examples, and return the moments of its numbers."""
        if is_null is not None and is_null.any():
            self._null += int(is_null.sum())
            column, numbers = taken(column, ~is_null), numbers[~is_null]
        if not len(numbers):
            return Moments()
        lengths = self._sizes(column)
        if lengths is not None:
            self._lengths = merged(self._lengths, moments_of(lengths))
            self._count += int((lengths > 0).sum())
        else:
            self._count += len(numbers)
        self._distinct.add(keys_of(self.feature, column), numbers)
        if self.feature.dtype == TEXT:
            self._values += len(numbers) if self.feature.shape == () else sum(np.size(row) for row in column)
            return Moments()
        values = column if isinstance(column, np.ndarray) else np.concatenate([np.asarray(row) for row in column])
        found = moments_of(values)
        self._values += values.size
        self.moments = merged(self.moments, found)
        return found

    def sample(self, column: Column) -> None:
        """Keep a few numbers of each of these examples, or the lengths of their texts."""
        if self.feature.dtype == TEXT:
            lengths = self._sizes(column)
            rows: Any = [] if lengths is None else lengths.reshape(-1, 1)
        else:
            rows = [np.asarray(row).reshape(-1) for row in column]
        for row in rows:
            self.sampled.append(row[:: max(1, -(-row.size // _MOST_SAMPLED))].astype(np.float64))

    def _sizes(self, column: Column) -> NDArray[np.int64] | None:
        if self.feature.size is None or (self.feature.dtype == TEXT and self.feature.shape == ()):
            return np.fromiter((len(row) for row in column), np.int64, len(column))
        return None

    def finished(self, examples: int) -> FeatureStats:
        moments, lengths, different = self.moments, self._lengths, self._distinct.different
        return FeatureStats(
            dtype=self.feature.dtype,
            shape=self.feature.shape,
            count=self._count,
            null=self._null,
            empty=examples - self._null - self._count,
            values=self._values,
            nan=moments.nan,
            infinite=moments.infinite,
            min=moments.low if moments.count else None,
            max=moments.high if moments.count else None,
            mean=moments.mean,
            deviation=moments.deviation,
            lengths=(int(lengths.low), int(lengths.high), float(lengths.mean or 0)) if lengths.count else None,
            distinct=different.number,
            distinct_error=different.error,
        )


def taken(column: Column, kept: NDArray[np.bool_]) -> Column:
    """Return the rows of a column for which `kept` is true."""
    if isinstance(column, np.ndarray):
        return column[kept]
    return [row for row, is_kept in zip(column, kept.tolist(), strict=True) if is_kept]


def keys_of(feature: Feature, column: Column) -> NDArray[np.uint64]:
    """Return the hash of each example's value."""
    if feature.dtype != TEXT and feature.shape == ():
        return number_hashes(np.asarray(column))
    if feature.dtype == TEXT and feature.shape == ():
        return hashes(column)
    return hashes(map(b"".join, zip(pieces_of(feature, column), strict=True)))


def pieces_of(feature: Feature, column: Column, dtype: str | None = None) -> list[bytes]:
    """Return a feature of each example as bytes, equal for equal values; a dtype casts numbers first."""
    if feature.dtype == TEXT:
        return [
            _prefixed([row] if feature.shape == () else list(np.asarray(row, object).reshape(-1))) for row in column
        ]
    if isinstance(column, np.ndarray) and column.dtype != object:
        plain_ones = _plain_numbers(column, dtype)
        rows = plain_ones.reshape(len(column), -1)
        count = rows.shape[1].to_bytes(8, "little")
        is_cast = plain_ones.dtype != column.dtype and column.size
        same = [_alike(*pair) for pair in zip(column, plain_ones, strict=True)] if is_cast else [True] * len(column)
        return [
            count + row.tobytes() if is_same else b"unlike" + column[place].tobytes()
            for place, (row, is_same) in enumerate(zip(rows, same, strict=True))
        ]
    return [pieces_of(feature, np.asarray(row).reshape(1, -1), dtype)[0] for row in column]


def _plain_numbers(values: NDArray[Any], dtype: str | None) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        found = values if dtype is None else values.astype(dtype)
    if found.dtype.kind == "f":
        found = found + found.dtype.type(0)  # -0.0 is 0.0
        found = np.where(np.isnan(found), found.dtype.type("nan"), found)
    return np.ascontiguousarray(found)


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same values, whatever their dtypes."""
    with np.errstate(all="ignore"):
        back = other.astype(one.dtype)
    return bool((bits_of(back) == bits_of(one)).all())


def _prefixed(items: Sequence[bytes]) -> bytes:
    sizes = [len(item).to_bytes(8, "little") for item in items]
    return b"".join(
        [len(items).to_bytes(8, "little"), *(part for pair in zip(sizes, items, strict=True) for part in pair)]
    )


def _shown(label: int | bytes) -> str:
    return label.decode(errors="backslashreplace") if isinstance(label, bytes) else str(label)


class LabelTally:
    """A counter of classes, up to a number of them."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature
        self.counts: Counter[Any] | None = Counter() if has_classes(feature) else None

    def add(self, column: Column) -> Counter[Any]:
        """Add the labels of some examples, and return the number of examples of each class."""
        found: Counter[Any] = Counter()
        if self.counts is None:
            return found
        _, values = entries_of(column)
        present, counts = np.unique(values, return_counts=True)
        if len(present) > MOST_LABELS:  # as objects of Python they would take many times the memory
            self.counts = None
            return found
        found.update(dict(zip(present.tolist(), counts.tolist(), strict=True)))
        self.counts.update(found)
        if len(self.counts) > MOST_LABELS:
            self.counts = None
        return found

    def named(self) -> dict[str, int] | None:
        """Return the number of examples of each class by its name; None if there are no classes, or very many.

        Classes that share a name, as two of ImageNet's do, have their numbers.
        """
        if self.counts is None:
            return None
        feature = self._feature
        names = dict(enumerate(feature.names)) if len(set(feature.names)) == len(feature.names) else {}
        return {names.get(value) or _shown(value): self.counts[value] for value in sorted(self.counts)}
