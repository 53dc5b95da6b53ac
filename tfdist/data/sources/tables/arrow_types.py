"""Types and arrays of Arrow as tables have them: wrappers, nulls, and lists in lists.

The type of a matrix may not say its size: then the first value does, and all others are compared with it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import MissingDependencyError


def arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        # the NumPy of TensorFlow 2.16 and 2.17, under which pip installs a pyarrow that refuses it
        wanted = "pyarrow<26" if np.__version__.startswith("1.") else "tfdist[formats]"
        raise MissingDependencyError(
            f"CSV, Parquet, Arrow and tables in memory need pyarrow, which cannot be imported ({error}). Run: "
            f"python -m pip install '{wanted}'",
            name="pyarrow",
        ) from error
    return pyarrow


def plain(kind: Any) -> Any:
    """The type of the values, without a dictionary or an extension around it."""
    found = kind
    while True:
        if arrow().types.is_dictionary(found):
            found = found.value_type
        elif isinstance(found, arrow().BaseExtensionType):
            found = found.storage_type
        else:
            return found


def is_list(kind: Any) -> bool:
    """A type is lists, of fixed size or not."""
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def innermost(kind: Any) -> Any:
    """The type of the values of lists, and of lists in lists."""
    inner = plain(kind)
    while is_list(inner):
        inner = plain(inner.value_type)
    return inner


def is_text(kind: Any) -> bool:
    types = arrow().types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    views = [getattr(types, name) for name in ("is_string_view", "is_binary_view") if hasattr(types, name)]
    return any(check(kind) for check in (*checks, *views, types.is_fixed_size_binary))


def tail(kind: Any) -> tuple[int, ...]:
    """The sizes that a type of lists in lists begins with."""
    inner, shape = plain(kind), []
    while arrow().types.is_fixed_size_list(inner):
        shape.append(int(inner.list_size))
        inner = plain(inner.value_type)
    return tuple(shape)


def unwrapped(array: Any) -> Any:
    """An array without a dictionary or an extension around it; a dictionary may hold a null itself."""
    while arrow().types.is_dictionary(array.type) or isinstance(array.type, arrow().BaseExtensionType):
        if arrow().types.is_dictionary(array.type):
            values = _without_views(array.dictionary)
            array = arrow().DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        else:
            array = array.storage
    return _without_views(array)


def _without_views(array: Any) -> Any:
    """Return an array without string views, which few of Arrow's functions accept; Polars writes them."""
    plain = _plain_texts(array.type)
    return array if plain == array.type else array.cast(plain)


def without_views(table: Any) -> Any:
    """Return a table without string views, so that rows can be taken by index; other columns share memory."""
    for place, field in enumerate(table.schema):
        kind = _plain_texts(field.type)
        if kind != field.type:
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def _plain_texts(kind: Any) -> Any:
    pyarrow, types = arrow(), arrow().types
    if hasattr(types, "is_string_view") and (types.is_string_view(kind) or types.is_binary_view(kind)):
        return pyarrow.large_string() if types.is_string_view(kind) else pyarrow.large_binary()
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _plain_texts(kind.value_type)
        make = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return kind if inner == kind.value_type else make(inner)
    if types.is_fixed_size_list(kind):
        inner = _plain_texts(kind.value_type)
        return kind if inner == kind.value_type else pyarrow.list_(inner, kind.list_size)
    if types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        made = pyarrow.struct([field.with_type(_plain_texts(field.type)) for field in fields])
        return kind if made == kind else made
    return kind


def nulls_of(array: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = unwrapped(array).is_null().to_numpy(zero_copy_only=False)
    return found


def values_of(values: Any) -> NDArray[Any]:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, object, len(values))


def leaves_of(values: Any, nulls: NDArray[np.bool_], fill: Any) -> NDArray[Any]:
    """Values that were taken for all places, with a fill where there is null."""
    found = values_of(values)
    found = found if found.flags.writeable else found.copy()
    found[nulls] = fill
    return found


def borrowed(array: Any, nulls: NDArray[np.bool_]) -> Any:
    """An array of which some values are null, where these have a value before or behind them: numbers stay the same."""
    rows = np.maximum.accumulate(np.where(nulls, -1, np.arange(len(nulls))))
    rows[rows < 0] = np.argmin(nulls)
    return array.take(arrow().array(rows))


class MisfitError(Exception):
    """A list in a matrix is null, or has another length than all."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__()
        self.place, self.what = place, what


def is_matrix(kind: Any) -> bool:
    """A type is lists in lists."""
    return len(_levels(kind)) > 1


def is_untold(kind: Any) -> bool:
    """A type is lists in lists, and does not say all their sizes."""
    levels = _levels(kind)
    return len(levels) > 1 and not all(levels)


def first_shape(array: Any) -> tuple[int, ...] | None:
    """The shape of the first value that is not null; None where there is none."""
    there = np.flatnonzero(~nulls_of(array))
    if not there.size:
        return None
    value, shape = unwrapped(array)[int(there[0])].as_py(), []
    for _ in _levels(array.type):
        shape.append(len(value or ()))
        value = value[0] if value else None
    return tuple(shape)


def flattened(array: Any, shape: tuple[int, ...]) -> Any:
    """The values of matrices that are not null themselves, one after the other; some may be null."""
    flat, each = unwrapped(array), 1
    for size in shape:
        if flat.null_count:
            raise MisfitError(int(np.argmax(nulls_of(flat))) // each, "a null list")
        fixed = getattr(flat.type, "list_size", None)
        lengths = np.full(len(flat), fixed) if fixed is not None else flat.value_lengths().to_numpy()
        if (unlike := np.flatnonzero(lengths != size)).size:
            raise MisfitError(int(unlike[0]) // each, f"a list of {lengths[unlike[0]]} where others have {size}")
        flat, each = unwrapped(flat.flatten()), each * size
    return flat


def _levels(kind: Any) -> list[bool]:
    """For each level of lists: the type says its size."""
    inner, found = plain(kind), []
    while is_list(inner):
        found.append(bool(arrow().types.is_fixed_size_list(inner)))
        inner = plain(inner.value_type)
    return found
