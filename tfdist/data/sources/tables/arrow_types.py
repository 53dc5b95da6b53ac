"""Types and arrays of Arrow as tables have them: what is around the values, and which of them are null."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import MissingDependencyError


def arrow() -> Any:
    """Return the module pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError(
            f"CSV, Parquet and tables in memory need pyarrow, which cannot be imported ({error}). Run: python -m pip "
            "install 'tfdist[formats]'",
            name="pyarrow",
        ) from error
    return pyarrow


def plain(kind: Any) -> Any:
    """Return the type of the values: without a dictionary or an extension around it."""
    found = kind
    while True:
        if arrow().types.is_dictionary(found):
            found = found.value_type
        elif isinstance(found, arrow().BaseExtensionType):
            found = found.storage_type
        else:
            return found


def innermost(kind: Any) -> Any:
    """Return the type of the values of lists, and of lists in lists."""
    types, inner = arrow().types, plain(kind)
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = plain(inner.value_type)
    return inner


def is_text(kind: Any) -> bool:
    """Return whether values are text or bytes."""
    types = arrow().types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    views = [getattr(types, name) for name in ("is_string_view", "is_binary_view") if hasattr(types, name)]
    return any(check(kind) for check in (*checks, *views, types.is_fixed_size_binary))


def tail(kind: Any) -> tuple[int, ...]:
    """Return the sizes that a type of lists in lists begins with."""
    inner, shape = plain(kind), []
    while arrow().types.is_fixed_size_list(inner):
        shape.append(int(inner.list_size))
        inner = plain(inner.value_type)
    return tuple(shape)


def unwrapped(array: Any) -> Any:
    """Return an array without a dictionary or an extension around it; a dictionary may hold a null itself."""
    while arrow().types.is_dictionary(array.type) or isinstance(array.type, arrow().BaseExtensionType):
        if arrow().types.is_dictionary(array.type):
            values = _without_views(array.dictionary)
            array = arrow().DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        else:
            array = array.storage
    return _without_views(array)


def _without_views(array: Any) -> Any:
    """An array whose texts are no views, which few of Arrow's functions take; polars has them."""
    plain = _plain_texts(array.type)
    return array if plain == array.type else array.cast(plain)


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
    return kind


def nulls_of(array: Any) -> NDArray[np.bool_]:
    """Return which values are null."""
    found: NDArray[np.bool_] = unwrapped(array).is_null().to_numpy(zero_copy_only=False)
    return found


def values_of(values: Any) -> NDArray[Any]:
    """Return values as an array, of objects where they are in a list."""
    if isinstance(values, np.ndarray):
        return values
    found = np.empty(len(values), object)
    found[:] = values
    return found
