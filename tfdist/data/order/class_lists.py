"""The classes of examples: one each, several, or none. Pure, in NumPy."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigError

_Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ClassLists:
    """The classes of all examples; `rows` and `places` have an entry for each class of each example.

    `classes` are integers, bytes of texts, or a tuple of these for several labels. Examples without a class, if there
    are any, have the class None, which is the last one.
    """

    examples: int
    classes: tuple[Any, ...]
    rows: _Ids
    places: _Ids

    @property
    def is_exclusive(self) -> bool:
        """Whether each example has one class, and its entry is in its place."""
        return len(self.rows) == self.examples  # each example has an entry, and those of rows are in order

    @cached_property
    def counts(self) -> _Ids:
        """The number of examples of each class."""
        return np.bincount(self.places, minlength=len(self.classes))

    @property
    def digest(self) -> str:
        """A text that differs if examples have other classes."""
        rows = b"" if self.is_exclusive else np.ascontiguousarray(self.rows, "<i8").tobytes()
        return hashlib.sha256(rows + np.ascontiguousarray(self.places, "<i8").tobytes()).hexdigest()[:8]

    def members(self) -> list[_Ids]:
        """Return the examples of each class, in rising order."""
        order = np.argsort(self.places, kind="stable")
        return np.split(self.rows[order], np.cumsum(self.counts)[:-1])

    def frequencies(self, of_examples: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the frequency of each class, given the frequency of each example."""
        return np.bincount(self.places, of_examples[self.rows], len(self.classes)).astype(np.float64)


def class_lists(columns: Sequence[Any]) -> ClassLists:
    """Return the classes of examples from one label or several, each a column with a value for every example.

    A column is an array of single values; a list of arrays or texts, the classes of each example; or an array
    ``[examples, classes]`` of zeros and ones. Several labels make a class of each combination that occurs.
    """
    if len(columns) == 1:
        rows, values = entries_of(columns[0])
        return _from_entries(len(columns[0]), rows, values)
    found = [class_lists([column]) for column in columns]
    if not all(one.is_exclusive for one in found):
        raise ConfigError(
            "several labels were given, and one of them has several classes in an example. Pass one label, or labels "
            "of one value each.",
            name="label",
        )
    combined = np.stack([one.places for one in found], axis=1)
    present, places = np.unique(combined, axis=0, return_inverse=True)
    classes = tuple(tuple(one.classes[at] for one, at in zip(found, row, strict=True)) for row in present.tolist())
    return ClassLists(found[0].examples, classes, np.arange(found[0].examples), places.reshape(-1).astype(np.int64))


def entries_of(column: Any) -> tuple[_Ids, NDArray[Any]]:
    """Return the entries of a column of classes: the row of each entry, and its value."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        if column.ndim == 1:
            return np.arange(len(column)), column
        if column.ndim == 2 and np.isin(column, (0, 1)).all():
            rows, values = np.nonzero(column)
            return rows, values
        raise ConfigError(
            f"a label has {column.shape[1:]} values of {column.dtype} in each example, which are not all 0 or 1. For "
            "several classes it must be a list of any length, or have a 0 or 1 for each class.",
            name="label",
            received=column.shape[1:],
        )
    if len(column) and isinstance(column[0], bytes):
        return np.arange(len(column)), np.fromiter(column, object, len(column))
    lists = [np.unique(np.asarray(row).reshape(-1)) for row in column]
    rows = np.repeat(np.arange(len(lists)), [len(row) for row in lists])
    return rows, np.concatenate(lists) if lists else np.zeros(0, np.int64)


def _from_entries(examples: int, rows: _Ids, values: NDArray[Any]) -> ClassLists:
    present, places = np.unique(values, return_inverse=True)
    classes = tuple(present.tolist()) if present.dtype == object else tuple(int(value) for value in present)
    without = np.setdiff1d(np.arange(examples), rows)
    if len(without):
        classes = (*classes, None)
        rows = np.concatenate([rows, without])
        places = np.concatenate([places, np.full(len(without), len(classes) - 1)])
        order = np.argsort(rows, kind="stable")
        rows, places = rows[order], places[order]
    return ClassLists(examples, classes, rows.astype(np.int64), places.reshape(-1).astype(np.int64))
