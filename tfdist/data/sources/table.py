"""Columns of Arrow, as CSV and Parquet give them -> features and columns of a block.

Example:
    >>> import pyarrow
    >>> feature_of_type("x", pyarrow.list_(pyarrow.float32(), 3), "a table").shape
    (3,)
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tfdist.data.schema import TEXT, Feature, Schema
from tfdist.data.sources.columns import column
from tfdist.data.sources.protocol import Block
from tfdist.errors import ConfigError, MissingDependencyError

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names; others are NumPy's


def arrow() -> Any:
    """Return the module pyarrow.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError(
            f"CSV and Parquet files need pyarrow, which cannot be imported ({error}). Run: python -m pip install "
            "'tfdist[formats]'"
        ) from error
    return pyarrow


def schema_of(types: Mapping[str, Any], where: str) -> Schema:
    """Return the schema of a table.

    Args:
        types: an Arrow type per column.
        where: whose they are, for messages.

    Raises:
        ConfigError: a type cannot be stored.
    """
    return Schema({name: feature_of_type(name, kind, where) for name, kind in types.items()})


def feature_of_type(name: str, kind: Any, where: str) -> Feature:
    """Return the feature that a column of this Arrow type is.

    Raises:
        ConfigError: it cannot be stored.
    """
    types = arrow().types
    inner, shape = _plain(kind), list[int | None](_tail(kind))
    for _ in shape:
        inner = _plain(inner.value_type)
    if not shape and (types.is_list(inner) or types.is_large_list(inner)):
        shape.append(None)
        inner = _plain(inner.value_type)
    if _is_text(inner):
        return Feature(TEXT, tuple(shape))
    if types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner):
        return Feature(_FLOATS.get(str(inner), str(inner)), tuple(shape))
    raise ConfigError(
        f"column {name!r} of {where} is {kind}; it must be bool, a number, text, bytes, or a list of these. Convert it "
        "(a time to seconds, say), or pass a schema without it."
    )


def same_columns(schema: Schema, names: list[str], where: str) -> None:
    """Check that a table has every column of the schema, and no name twice.

    Raises:
        ConfigError: it has not.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    missing = [name for name in schema if name not in names]
    if twice:
        raise ConfigError(f"{where} has the column {twice[0]!r} {names.count(twice[0])} times; give each its own name.")
    if missing:
        raise ConfigError(
            f"{where} has no column {missing[0]!r}; it has {', '.join(map(repr, names))}. All files of a source, and "
            "its schema, must have the same columns."
        )


def block(schema: Schema, batch: Any, start: int, where: str) -> Block:
    """Return a record batch of Arrow as a block.

    Args:
        schema: what to read of it.
        batch: the `pyarrow.RecordBatch`.
        start: index of its first row, for messages.
        where: the file, for messages.

    Raises:
        ConfigError: a value is null, or does not fit; the message has its row.
    """
    return {
        name: column(name, feature, _values(name, batch.column(name), start, where), start, f" of {where}")
        for name, feature in schema.items()
    }


def _plain(kind: Any) -> Any:
    """The type of the values: without a dictionary or an extension around it."""
    found = kind
    while True:
        if arrow().types.is_dictionary(found):
            found = found.value_type
        elif isinstance(found, arrow().BaseExtensionType):
            found = found.storage_type
        else:
            return found


def _is_text(kind: Any) -> bool:
    types = arrow().types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    views = [getattr(types, name) for name in ("is_string_view", "is_binary_view") if hasattr(types, name)]
    return any(check(kind) for check in (*checks, *views, types.is_fixed_size_binary))


def _values(name: str, array: Any, start: int, where: str) -> Any:
    """The rows of a column as `column` takes them."""
    types = arrow().types
    if array.null_count:
        first = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        _refuse_null(name, start + first, where, "null")
    while types.is_dictionary(array.type) or isinstance(array.type, arrow().BaseExtensionType):
        array = array.dictionary_decode() if types.is_dictionary(array.type) else array.storage
        if array.null_count:  # a dictionary may hold a null itself
            return _values(name, array, start, where)
    if _is_text(array.type):
        is_string = types.is_string(array.type) or types.is_large_string(array.type)
        return (array.cast(arrow().large_binary()) if is_string else array).to_pylist()
    if types.is_fixed_size_list(array.type):
        inner = array.flatten()
        if inner.null_count:
            _refuse_null(name, start + _first_null(inner) // array.type.list_size, where, "a list with a null")
        return _array(_values(name, inner, start, where)).reshape(len(array), array.type.list_size, *_tail(inner.type))
    if types.is_list(array.type) or types.is_large_list(array.type):
        return _lists(name, array, start, where)
    return array.to_numpy(zero_copy_only=False)


def _lists(name: str, array: Any, start: int, where: str) -> list[Any]:
    inner = array.flatten()
    lengths = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    if inner.null_count:
        row = int(np.searchsorted(ends, _first_null(inner), side="right"))
        _refuse_null(name, start + row, where, "a list with a null")
    flat = _array(_values(name, inner, start, where))
    return [flat[end - size : end] for end, size in zip(ends.tolist(), lengths.tolist(), strict=True)]


def _first_null(array: Any) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _tail(kind: Any) -> tuple[int, ...]:
    inner, shape = _plain(kind), []
    while arrow().types.is_fixed_size_list(inner):
        shape.append(int(inner.list_size))
        inner = _plain(inner.value_type)
    return tuple(shape)


def _refuse_null(name: str, row: int, where: str, what: str) -> NoReturn:
    raise ConfigError(
        f"Example {row} of {where}: column {name!r} is {what}; every example has a value for every feature. Fill it "
        "(fill_null of pyarrow.compute, fillna of pandas), or leave these rows out."
    )
