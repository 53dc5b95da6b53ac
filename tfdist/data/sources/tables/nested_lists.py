"""Matrices in columns of Arrow: lists in lists of which the type does not say that all have one length.

The first value tells the shape, and all others are compared with it.

Example:
    >>> import pyarrow
    >>> array = pyarrow.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    >>> is_matrix(array.type), first_shape(array), flattened(array, (2, 2)).tolist()
    (True, (2, 2), [1, 2, 3, 4, 5, 6, 7, 8])
"""

from typing import Any

import numpy as np

from tfdist.data.sources.tables.arrow_types import arrow, nulls_of, plain, unwrapped


class MisfitError(Exception):
    """A list in a matrix is null, or has another length than all."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__()
        self.place, self.what = place, what


def is_matrix(kind: Any) -> bool:
    """Return whether a type is lists in lists, not all of a size that it says."""
    levels = _levels(kind)
    return len(levels) > 1 and not all(levels)


def first_shape(array: Any) -> tuple[int, ...] | None:
    """Return the shape of the first value that is not null; None where there is none."""
    there = np.flatnonzero(~nulls_of(array))
    if not there.size:
        return None
    value, shape = unwrapped(array)[int(there[0])].as_py(), []
    for _ in _levels(array.type):
        shape.append(len(value or ()))
        value = value[0] if value else None
    return tuple(shape)


def flattened(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the values of matrices without nulls, one behind the other."""
    flat, each = unwrapped(array), 1
    for size in shape:
        if flat.null_count:
            raise MisfitError(int(np.argmax(nulls_of(flat))) // each, "a null")
        fixed = getattr(flat.type, "list_size", None)
        lengths = np.full(len(flat), fixed) if fixed is not None else flat.value_lengths().to_numpy()
        if (unlike := np.flatnonzero(lengths != size)).size:
            raise MisfitError(int(unlike[0]) // each, f"a list of {lengths[unlike[0]]} where others have {size}")
        flat, each = unwrapped(flat.flatten()), each * size
    if flat.null_count:
        raise MisfitError(int(np.argmax(nulls_of(flat))) // each, "a null")
    return flat


def _levels(kind: Any) -> list[bool]:
    """Return for each level of lists whether the type says its size."""
    types, inner, found = arrow().types, plain(kind), []
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        found.append(bool(types.is_fixed_size_list(inner)))
        inner = plain(inner.value_type)
    return found
